"""Tests of reading devices and links."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.problems.devices import DeviceSet, parse_devices, parse_link
from solver import Device, GiB, Link, PartitionError
from solver.model.quantities import parse_memory


def memories(text: str) -> list[int | None]:
    return [device.memory_bytes for device in parse_devices(text).devices]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4x24GiB", [24 * GiB] * 4),
        ("24GiB,16GiB", [24 * GiB, 16 * GiB]),
        ("2x80GiB,2x24GiB", [80 * GiB] * 2 + [24 * GiB] * 2),
        ("80GB", [80 * 10**9]),
        ("1.5GiB", [3 * GiB // 2]),
        ("0.1GB", [100_000_000]),
        (" 2 x 8 MB , 1kib ", [8_000_000, 8_000_000, 1024]),
        ("unlimited,1TB", [None, 10**12]),
        ("2*512B", [512, 512]),
    ],
)
def test_strings_give_exact_bytes(text: str, expected: list[int | None]) -> None:
    assert memories(text) == expected


def test_devices_are_numbered_by_kind() -> None:
    parsed = parse_devices("2x80GiB@a100-80gb,64GiB@cpu,24GiB")
    assert [device.name for device in parsed.devices] == ["cuda:0", "cuda:1", "cpu:0", "cuda:2"]
    assert parsed.classes == ("a100-80gb", "cpu", "default")
    assert set(parsed.spec_of) == set(parsed.classes)
    assert parsed.interconnect is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("24GiB,", "an entry is empty"),
        (",", "an entry is empty"),
        ("4x24", "has no unit"),
        ("24", "has no unit"),
        ("4xGiB", "not a memory"),
        ("4x", "not a memory"),
        ("x24GiB", "not a memory"),
        ("-4GiB", "not a memory"),
        ("24XiB", "unit 'XiB' is unknown"),
        ("24G", "unit 'G' is unknown"),
        ("0GiB", "memory is 0GiB"),
        ("0.1B", "memory is 0.1B"),
        ("0x24GiB", "0 devices"),
        ("9999x24GiB", "9999 devices"),
        ("1000x1GiB,1000x1GiB", "2000 devices"),
        ("nan GiB", "not a memory"),
        ("80GiB@a100", "did you mean a100-40gb|did you mean a100-80gb"),
        ("80GiB@", "no class follows the @"),
        ("80GiB@zzz", "the presets are"),
        ("missing.toml", "cannot read missing.toml"),
        ("missing.json", "cannot read missing.json"),
    ],
)
def test_wrong_strings_say_in_one_line_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(PartitionError, match=says) as caught:
        parse_devices(text)
    assert "\n" not in str(caught.value)


def test_wrong_strings_show_an_example() -> None:
    for text in ("", "4x24", "0GiB", "four"):
        with pytest.raises(PartitionError, match="write for example 4x24GiB"):
            parse_devices(text)


def test_memory_is_read_exactly() -> None:
    assert parse_memory("0.3GB", "here", "") == 300_000_000
    assert parse_memory("unlimited", "here", "") is None


@pytest.mark.parametrize(
    ("memory", "memory_bytes"),
    [("8GiB", 8 * GiB), (8e9, 8_000_000_000), (" 0.5 kb ", 500), ("Unlimited", None), (None, None)],
)
def test_a_device_reads_its_memory(memory: float | str | None, memory_bytes: int | None) -> None:
    device = Device("d", memory_bytes=memory)
    assert device == Device("d", memory_bytes)
    assert device.memory_bytes is None or type(device.memory_bytes) is int
    assert replace(device, name="e").memory_bytes == memory_bytes


@pytest.mark.parametrize(
    ("memory", "says"),
    [
        (8.5, "device 'd': memory_bytes is 8.5; write a whole number"),
        (float("inf"), "device 'd': memory_bytes is inf; write a whole number"),
        (float("nan"), "device 'd': memory_bytes is nan; write a whole number"),
        (-8e9, "device 'd': memory_bytes is -8000000000; write a number that is not negative"),
        (0.0, "device 'd': memory_bytes is 0; write a positive number"),
        ("8", "device 'd': memory '8' has no unit; write for example \"24GiB\""),
        ("0GiB", "device 'd': memory is 0GiB; write for example \"24GiB\""),
        ("8XB", "device 'd': unit 'XB' is unknown; write B, KB"),
        ("much\n", "device 'd': 'much' is not a memory; write for example \"24GiB\""),
        (f"{'9' * 5000}GB", "device 'd': a number has 5000 digits; write at most 30"),
        (True, "device 'd': memory_bytes is True; write a whole number"),
        ([8], "device 'd': memory_bytes is \\[8\\]; write a whole number"),
    ],
)
def test_memory_that_is_none_is_refused_in_one_line(memory: Any, says: str) -> None:
    with pytest.raises(PartitionError, match=f"^{says}") as caught:
        Device("d", memory_bytes=memory)
    assert "\n" not in str(caught.value)


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
def test_links(text: str, link: Link) -> None:
    assert parse_link(text) == link


@pytest.mark.parametrize(
    "text", ["", "25", "25GB", "25GB/m", "GB/s", "25GB/s,10", "25GB/s,soon", "9Gb/s", "9Gib/s"]
)
def test_wrong_links_show_an_example(text: str) -> None:
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


def read(tmp_path: Path, text: str, name: str = "devices.toml") -> DeviceSet:
    path = tmp_path / name
    path.write_text(text)
    return parse_devices(str(path))


def test_file_gives_speeds_links_and_charging(tmp_path: Path) -> None:
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


def test_devices_of_equal_speed_share_a_class(tmp_path: Path) -> None:
    device = {"memory": "1GiB", "flops_per_s": 5, "memory_bandwidth_bytes_per_s": 6}
    text = json.dumps({"devices": [device, device, {**device, "flops_per_s": 7}]})
    classes = [d.device_class for d in read(tmp_path, text, "devices.json").devices]
    assert classes[0] == classes[1] != classes[2]


def test_speed_may_be_given_by_dtype(tmp_path: Path) -> None:
    rates = {"float32": 10, "bfloat16": 20}
    device = {"memory": 5, "flops_per_s": rates, "memory_bandwidth_bytes_per_s": 6}
    device["attention"] = "efficient"
    parsed = read(tmp_path, json.dumps({"devices": [device]}), "devices.json")
    assert next(iter(parsed.spec_of.values())).flops_per_s_of("bfloat16") == 20
    assert next(iter(parsed.spec_of.values())).attention == ("efficient",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "device list is empty"),
        ("devices = []", "device list is empty"),
        ("[[devices]]", "memory is missing"),
        ('[[devices]]\nmemory = "0GiB"', "memory is 0GiB"),
        ("[[devices]]\nmemory = 0", "memory_bytes is 0"),
        ("[[devices]]\nmemory = -5", "not negative"),
        ("[[devices]]\nmemory = 1.5", "whole number"),
        ('[[devices]]\nmemory = "24"', "has no unit"),
        ('[[devices]]\nmemroy = "24GiB"', "did you mean memory"),
        ("[[devices]]\nmemory = 5\ncount = 0", "0 devices"),
        ('[[devices]]\nmemory = 5\ncount = "2"', "count is '2'"),
        ("[[devices]]\nmemory = 5\nname = 3", "name is 3"),
        ('[[devices]]\nmemory = 5\nname = "host"', "choose another"),
        ('[[devices]]\nmemory = 5\nclass = "a100"', "unknown"),
        ("[[devices]]\nmemory = 5\nclass = 4", "class is 4"),
        ("[[devices]]\nmemory = 5\nis_host = 1", "is_host is 1"),
        ("[[devices]]\nmemory = 5\nflops_per_s = 1", "memory_bandwidth_bytes_per_s is missing"),
        ('[[devices]]\nmemory = 5\nattention = "math"', "attention is given without speeds"),
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
        (
            "[[devices]]\nmemory = 5\n[[links]]\nsource = 'x'\ntarget = 'y'",
            "source is 'x', which is not",
        ),
        ("[[devices]]\nmemory = 5\n[interconnect]\nbandwidth = 0", "bandwidth_bytes_per_s is 0"),
        ("[[devices]]\nmemory = 5\n[interconnect]\nbandwidth = '5'", "not a bandwidth"),
        ("[[devices]]\nmemory = 5\n[interconnect]\ncharging = 'free'", "charging is 'free'"),
        ("[[devices]]\nmemory = 5\n[interconnect]\noverlap = 1", "overlap is 1"),
        ("[[devices]]\nmemory = 5\n[interconnect]\nlatency_ns = -1", "not negative"),
        (
            "[[devices]]\nmemory = 5\ncount = 2\n[[links]]\nsource = 'cuda:1'\ntarget = 'cuda:1'",
            r"links\[0\]: it leads from 'cuda:1' to itself, .*; leave it out",
        ),
        (
            "[[devices]]\nmemory = 5\nflops_per_s = { float32 = 2, flaot16 = 1 }\n"
            "memory_bandwidth_bytes_per_s = 1",
            r"devices\[0\]: flops_per_s: there is no dtype 'flaot16'; did you mean float16",
        ),
        ("devices = 3", "devices is not a list"),
        ("devices = [3]", r"devices\[0\] is not an object"),
        ("[[device]]\nmemory = 5", "did you mean devices"),
        ("not toml", "not valid TOML"),
    ],
)
def test_wrong_files_name_the_file_and_the_field(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(PartitionError, match=says) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "devices.toml"))
    assert "\n" not in str(caught.value)


def test_wrong_json_is_one_line(tmp_path: Path) -> None:
    for text in ("{", "[]", "null", '{"devices": {}}'):
        with pytest.raises(PartitionError) as caught:
            read(tmp_path, text, "devices.json")
        assert "\n" not in str(caught.value)


LONG = "9" * 5000


@pytest.mark.parametrize("text", [f"{LONG}x1GiB", f"{LONG}GiB", f"0.{LONG}GiB"])
def test_numbers_of_thousands_of_digits_are_refused(text: str) -> None:
    with pytest.raises(PartitionError, match="digits; write at most"):
        parse_devices(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0GB/s", "bandwidth is 0GB/s"),
        ("0.1B/s", "bandwidth is 0.1B/s"),
        ("25GB/s,", "'' is not a time"),
        (f"{LONG}GB/s", "digits; write at most"),
        (f"1GB/s,{LONG}us", "digits; write at most"),
    ],
)
def test_links_of_no_use_are_refused(text: str, says: str) -> None:
    with pytest.raises(PartitionError, match=says):
        parse_link(text)


SPEEDS = "[[devices]]\nmemory = 5\nflops_per_s = 1e12\nmemory_bandwidth_bytes_per_s = "


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        (f"[[devices]]\nmemory = {LONG}", "not valid TOML"),
        ("[[devices]]\nmemory = 5\nclass = ''", "class is ''"),
        (SPEEDS + "{a = 1}", "memory_bandwidth_bytes_per_s is {'a': 1}"),
        (SPEEDS + "1\nlaunch_overhead_ns = {a = 1}", "launch_overhead_ns is {'a': 1}"),
        (SPEEDS + "1\nlaunch_overhead_ns = -1", "launch_overhead_ns is -1"),
        ("[[devices]]\nmemory = 5\n[interconnect]\nbandwidth = 0", "t.toml: interconnect: link"),
    ],
)
def test_more_bad_files_name_the_field_once(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text(text)
    with pytest.raises(PartitionError) as caught:
        parse_devices(str(path))
    assert says in str(caught.value)
    assert str(caught.value).count("t.toml") == 1


def test_a_launch_overhead_may_be_zero(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text(SPEEDS + "1e9\nlaunch_overhead_ns = 0")
    ((_, spec),) = parse_devices(str(path)).specs
    assert spec.launch_overhead_ns == 0
