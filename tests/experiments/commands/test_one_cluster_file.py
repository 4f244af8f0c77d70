"""One file of devices means the same to every command that plans."""

import json

import pytest

from experiments.cli import main
from solver import load_plan

pytestmark = pytest.mark.usefixtures("captured_once")
MODEL = "tests.support.serving_models:small"
REQUEST = ["--prompt", "8", "--generate", "4", "--context", "16", "--batch", "3"]
DEVICES = """
[[devices]]
name = "gpu:0"
memory = "{memory}"
class = "rtx-4090"

[[devices]]
name = "gpu:1"
memory = "{memory}"
class = "rtx-4090"

[interconnect]
bandwidth = "25GB/s"

[[links]]
source = "gpu:0"
target = "gpu:1"
bandwidth = "{bandwidth}"

[[links]]
source = "gpu:1"
target = "gpu:0"
bandwidth = "{bandwidth}"
"""
ROADS = {
    "plan": ["plan", MODEL, "--objective", "latency", "--memory-model", "weights"],
    "serve": ["serve", MODEL, *REQUEST, "--objective", "token", "--usable", "1.0"],
    # Half of the model is on the first device, and no host may run the other.
    "serve --host": [
        *("serve", MODEL, *REQUEST, "--objective", "token", "--usable", "1.0"),
        *("--host", "1KB@cpu", "--time-limit", "2"),
    ],
}


def value(road, text, tmp_path, capsys, *options):
    """The value of the plan of a road for a file of devices."""
    file = tmp_path / "devices.toml"
    file.write_text(text, encoding="utf-8")
    words = [*ROADS[road], "--devices", str(file), *options, "--json"]
    assert main(words) == 0, words
    found = json.loads(capsys.readouterr().out)
    return found["objective"] if road == "plan" else found["value"]


@pytest.mark.parametrize("road", ROADS)
def test_links_and_files_count_on_every_road(road, tmp_path, capsys):
    out = tmp_path / "plan.json"
    fast, slow = (
        value(road, DEVICES.format(memory="80KB", bandwidth=rate), tmp_path, capsys, *options)
        for rate, options in (("25GB/s", ()), ("1MB/s", ("--out", str(out))))
    )
    assert slow > fast
    assert load_plan(out).device_order == ("gpu:0", "gpu:1")
    alone = DEVICES.format(memory="800KB", bandwidth="1KB/s")
    assert value(road, alone, tmp_path, capsys) < slow


@pytest.mark.parametrize("road", ROADS)
def test_pages_and_the_greedy_solver_are_on_every_road(road, tmp_path, capsys):
    text, page = DEVICES.format(memory="800KB", bandwidth="25GB/s"), tmp_path / "plan.html"
    best = value(road, text, tmp_path, capsys, "--out", str(page))
    assert 0 < best <= value(road, text, tmp_path, capsys, "--solver", "greedy")
    assert f"<h1>{MODEL}" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("road", ROADS)
def test_pins_hold_on_every_road(road, tmp_path):
    out, file = tmp_path / "plan.json", tmp_path / "devices.toml"
    file.write_text(DEVICES.format(memory="800KB", bandwidth="25GB/s"), encoding="utf-8")
    words = [*ROADS[road], "--devices", str(file), "--pin", "lm_head=gpu:1", "--out", str(out)]
    assert main(words) == 0
    assert "gpu:1" in load_plan(out).device_order


@pytest.mark.parametrize("road", ROADS)
def test_options_that_say_nothing_are_named(road, tmp_path, refuses):
    file = tmp_path / "devices.toml"
    file.write_text(DEVICES.format(memory="800KB", bandwidth="25GB/s"), encoding="utf-8")
    for option in (["--solver", "none"], ["--without", "none"]):
        refuses([*ROADS[road], "--devices", str(file), *option], "none")
