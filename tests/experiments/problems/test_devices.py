"""Tests of reading devices and links."""

import json
from dataclasses import replace

import pytest

from experiments.problems.devices import device_text, parse_devices, parse_link
from fx_bridge.costs.device_presets import DEVICE_SPECS
from solver import Device, GiB, Link, PartitionError
from tests.support.refusals import refused


def memories(text):
    return [device.memory_bytes for device in parse_devices(text).devices]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4x24GiB", [24 * GiB] * 4),
        ("24GiB,16GiB", [24 * GiB, 16 * GiB]),
        ("2x80GiB,2x24GiB", [80 * GiB] * 2 + [24 * GiB] * 2),
        ("1.5GiB", [3 * GiB // 2]),
        ("0.1GB", [100_000_000]),
        (" 2 x 8 MB , 1kib ", [8_000_000, 8_000_000, 1024]),
        ("unlimited,1TB", [None, 10**12]),
    ],
)
def test_strings_give_exact_bytes(text, expected):
    assert memories(text) == expected


def test_devices_are_numbered_by_kind():
    parsed = parse_devices("2x80GiB@a100-80gb,64GiB@cpu,24GiB")
    assert [device.name for device in parsed.devices] == ["cuda:0", "cuda:1", "cpu:0", "cuda:2"]
    assert parsed.classes == ("a100-80gb", "cpu", "default")
    assert set(parsed.spec_of) == set(parsed.classes)
    assert parsed.interconnect is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("24GiB,", "an entry is empty"),
        ("4x24", "has no unit"),
        ("4xGiB", "not a memory"),
        ("24XiB", "unit 'XiB' is unknown"),
        ("0GiB", "memory is 0GiB"),
        ("9999x24GiB", "9999 devices"),
        ("1000x1GiB,1000x1GiB", "2000 devices"),
        ("80GiB@a100", "did you mean a100-"),
        ("80GiB@", "no class follows the @"),
        ("missing.toml", "cannot read missing.toml"),
    ],
)
def test_wrong_strings_say_in_one_line_what_is_wrong(text, says):
    with refused(says):
        parse_devices(text)


@pytest.mark.parametrize(
    ("memory", "memory_bytes"),
    [("8GiB", 8 * GiB), (8e9, 8_000_000_000), (" 0.5 kb ", 500), ("Unlimited", None), (None, None)],
)
def test_a_device_reads_its_memory(memory, memory_bytes):
    device = Device("d", memory_bytes=memory)
    assert device == Device("d", memory_bytes)
    assert device.memory_bytes is None or type(device.memory_bytes) is int
    assert replace(device, name="e").memory_bytes == memory_bytes


@pytest.mark.parametrize(
    ("memory", "says"),
    [
        (8.5, "device 'd': memory_bytes is 8.5; write a whole number"),
        (float("inf"), "device 'd': memory_bytes is inf; write a whole number"),
        ("8", "device 'd': memory '8' has no unit; write for example \"24GiB\""),
        ("much\n", "device 'd': 'much' is not a memory; write for example \"24GiB\""),
        (f"{'9' * 5000}GB", "device 'd': a number has 5000 digits; write at most 30"),
        (True, "device 'd': memory_bytes is True; write a whole number"),
    ],
)
def test_memory_that_is_none_is_refused_in_one_line(memory, says):
    with refused(starts=says):
        Device("d", memory_bytes=memory)


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("25GB/s", Link(25 * 10**9)),
        ("25GB/s,10us", Link(25 * 10**9, 10_000)),
        ("unlimited", Link()),
        ("unlimited, 5 ms", Link(None, 5_000_000)),
        ("1GiB/s,7ns", Link(GiB, 7)),
        ("1.5GB/s,1.2ms", Link(15 * 10**8, 1_200_000)),
        ("1KB/s, .25 us ", Link(1000, 250)),
        ("1KB/s,1.0001us", Link(1000, 1001)),
    ],
)
def test_links(text, link):
    assert parse_link(text) == link


@pytest.mark.parametrize(
    "text", ["", "25", "25GB", "25GB/m", "GB/s", "25GB/s,10", "25GB/s,soon", "9Gb/s", "9Gib/s"]
)
def test_wrong_links_show_an_example(text):
    with pytest.raises(PartitionError, match=r"write for example 25GB/s"):
        parse_link(text)


TOML = """
[[devices]]
name = "big"
count = 2
memory = "80GiB"
class = "a100-80gb"

[[devices]]
name = "own"
memory = 1000
flops_per_s = 1e12
memory_bandwidth_bytes_per_s = 2_000_000
launch_overhead_ns = 7

[interconnect]
bandwidth = "25GB/s"
latency_ns = 10
overlap = true

[[links]]
source = "big:0"
target = "big:1"
bandwidth = 300
"""


def read(tmp_path, text, name="devices.toml"):
    path = tmp_path / name
    path.write_text(text)
    return parse_devices(str(path))


def test_file_gives_speeds_links_and_charging(tmp_path):
    parsed = read(tmp_path, TOML)
    assert [device.name for device in parsed.devices] == ["big:0", "big:1", "own"]
    assert parsed.devices[0] == Device("big:0", 80 * GiB, "a100-80gb")
    own = parsed.spec_of[parsed.devices[2].device_class]
    assert (own.flops_per_s, own.memory_bandwidth_bytes_per_s) == (10**12, 2_000_000)
    assert own.launch_overhead_ns == 7
    assert parsed.interconnect is not None
    assert parsed.interconnect.overlap
    assert parsed.interconnect.link("big:0", "big:1") == Link(300)
    assert parsed.interconnect.link("big:1", "own") == Link(25 * 10**9, 10)


def test_devices_of_equal_speed_share_a_class(tmp_path):
    device = {"memory": "1GiB", "flops_per_s": 5, "memory_bandwidth_bytes_per_s": 6}
    text = json.dumps({"devices": [device, device, {**device, "flops_per_s": 7}]})
    classes = [d.device_class for d in read(tmp_path, text, "devices.json").devices]
    assert classes[0] == classes[1] != classes[2]


def test_speed_may_be_given_by_dtype(tmp_path):
    rates = {"float32": 10, "bfloat16": 20}
    device = {"memory": 5, "flops_per_s": rates, "memory_bandwidth_bytes_per_s": 6}
    device["attention"] = "efficient"
    parsed = read(tmp_path, json.dumps({"devices": [device]}), "devices.json")
    assert next(iter(parsed.spec_of.values())).flops_per_s_of("bfloat16") == 20
    assert next(iter(parsed.spec_of.values())).attention == ("efficient",)


def test_a_class_like_a_preset_has_its_other_numbers(tmp_path):
    text = '[[devices]]\nmemory = 5\nclass = "mine"\nlike = "l4"\nbandwidth_efficiency = 0.5'
    (spec,) = read(tmp_path, text).spec_of.values()
    source = "l4 with given rates"
    assert spec == replace(DEVICE_SPECS["l4"], name="mine", bandwidth_efficiency=0.5, source=source)


@pytest.mark.parametrize("name", DEVICE_SPECS)
def test_the_text_of_a_device_is_read_back(tmp_path, name):
    device, spec = Device("one", 7 * GiB, "mine"), replace(DEVICE_SPECS[name], name="mine")
    parsed = read(tmp_path, device_text(device, spec))
    assert (parsed.devices, parsed.spec_of) == ((device,), {"mine": spec})


SPEEDS = "[[devices]]\nmemory = 5\nflops_per_s = 1e12\nmemory_bandwidth_bytes_per_s = "


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "device list is empty"),
        ("[[devices]]", "memory is missing"),
        ("[[devices]]\nmemory = 1.5", "whole number"),
        ('[[devices]]\nmemroy = "24GiB"', "did you mean memory"),
        ("[[devices]]\nmemory = 5\ncount = 0", "0 devices"),
        ('[[devices]]\nmemory = 5\nname = "host"', "choose another"),
        ("[[devices]]\nmemory = 5\nflops_per_s = 1", "memory_bandwidth_bytes_per_s is missing"),
        ('[[devices]]\nmemory = 5\nattention = "math"', "flops_per_s is missing"),
        ('[[devices]]\nmemory = 5\nlike = "l44"', "'l44' is unknown; did you mean l4"),
        ('[[devices]]\nmemory = 5\nlike = "l4"\nclass = "l4"', "class 'l4' is a preset"),
        (
            '[[devices]]\nmemory = 5\nlike = "l4"\nclass = "a"\ncompute_efficiency = 1.5',
            "compute_efficiency is 1.5; write a fraction",
        ),
        (
            "[[devices]]\nmemory = 5\nflops_per_s = 1\nmemory_bandwidth_bytes_per_s = 1\n"
            "attention = 3",
            "attention is 3; write one or more of flash",
        ),
        (
            "[[devices]]\nmemory = 5\nflops_per_s = 0\nmemory_bandwidth_bytes_per_s = 1",
            "flops_per_s is 0",
        ),
        (
            '[[devices]]\nmemory = 5\nname = "a"\n[[devices]]\nmemory = 5\nname = "a"',
            "two devices are called 'a'",
        ),
        ("[[devices]]\nmemory = 5\n[[links]]\nsource = 'x'\ntarget = 'y'", "source is 'x', which"),
        ("[[devices]]\nmemory = 5\n[interconnect]\nbandwidth = 0", "bandwidth_bytes_per_s is 0"),
        ("[[devices]]\nmemory = 5\n[interconnect]\nbandwidth = '5'", "not a bandwidth"),
        ("[[devices]]\nmemory = 5\n[interconnect]\ncharging = 'free'", "charging is 'free'"),
        ("[[devices]]\nmemory = 5\n[interconnect]\noverlap = 1", "overlap is 1"),
        ("[[devices]]\nmemory = 5\n[interconnect]\nlatency_ns = -1", "not negative"),
        (
            "[[devices]]\nmemory = 5\ncount = 2\n[[links]]\nsource = 'cuda:1'\ntarget = 'cuda:1'",
            "links[0]: it leads from 'cuda:1' to itself, ",
        ),
        (
            "[[devices]]\nmemory = 5\nflops_per_s = { float32 = 2, flaot16 = 1 }\n"
            "memory_bandwidth_bytes_per_s = 1",
            "devices[0]: flops_per_s: there is no dtype 'flaot16'; did you mean float16",
        ),
        (SPEEDS + "1\nlaunch_overhead_ns = -1", "launch_overhead_ns is -1"),
        (SPEEDS + "{a = 1}", "memory_bandwidth_bytes_per_s is {'a': 1}"),
        ("devices = 3", "devices is not a list"),
        ("devices = [3]", "devices[0] is not an object"),
        ("[[device]]\nmemory = 5", "did you mean devices"),
        ("not toml", "not valid TOML"),
    ],
)
def test_wrong_files_name_the_file_and_the_field(tmp_path, text, says):
    with refused(says, starts=str(tmp_path / "devices.toml")):
        read(tmp_path, text)
