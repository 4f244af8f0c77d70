"""Compare bytes, words and plans for GGUF files with llama.cpp itself; prints Markdown.

Needs a build of llama.cpp with RPC (``benchmarks/llama_cpp_engine.py`` says how), and no GPU: the
devices are two servers on loopback, and the files are sparse, with headers of real sizes.

Run ``python -m benchmarks.llama_cpp --binaries FOLDER``.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.llama_cpp_cases import ENDPOINTS, byte_cases, kind_of, placements, word_cases
from benchmarks.llama_cpp_engine import MIB, Answer, Engine, engine
from benchmarks.llama_cpp_headers import SERVERS, print_headers
from fx_bridge.costs.device_presets import DEVICE_SPECS
from fx_bridge.files.gguf_buffers import cached_positions, compute_buffer_bytes
from fx_bridge.files.gguf_header import read_gguf
from fx_bridge.files.gguf_layers import GgufModel, gguf_model
from fx_bridge.options import Costs
from fx_bridge.serving.gguf_job import UBATCH, GgufJobs
from fx_bridge.serving.gguf_plan import plan_gguf
from fx_bridge.serving.request import Request
from solver import Device
from tests.support.llama_cpp_models import write_model
from tests.support.llama_cpp_places import feeds_of, read_tensors, write_tensors

RECORDS = Path("tests/data/llama_cpp")
CAPACITIES_MIB = ((6144, 4096), (4096, 6144), (7168, 2048))
NAMES = {"CPU": "cpu:0", "Host": "cpu:0", "RPC0": "rpc:0", "RPC1": "rpc:1"}
DEVICES = ("rpc:0", "rpc:1", "cpu:0")


def runs(places: tuple[str, ...]) -> list[tuple[str, int]]:
    return [(name, len([*own])) for name, own in groupby(places)]


@contextmanager
def written(
    name: str, kind: str, cache: str = "f16", **sizes: int
) -> Iterator[tuple[Path, GgufModel]]:
    """Yield the file of a model, and the model as read here."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder), name, kind, **sizes)
        yield path, gguf_model(read_gguf(path), cache_type_k=cache, cache_type_v=cache)


def compare_bytes(machine: Engine, count: int) -> Iterator[tuple[dict[str, Any], list[float]]]:
    """Yield what the engine says of random lines, and our estimates of buffers by its own."""
    for case in byte_cases(random.Random(0), count):
        words = case["words"]
        option = dict(zip(words[::2], words[1::2], strict=True))
        with written(case["model"], case["kind"], option["-ctk"]) as (path, model):
            answer = machine.ask(path, words, case["devices"])
        *layers, last = answer.devices
        weights, caches = Counter(CPU=model.embedding.size_bytes), Counter()
        for device, (first, second) in zip(layers, model.layers, strict=True):
            weights[device] += first.size_bytes + second.size_bytes
            window = first.cache.most_positions
            positions = cached_positions(option["-c"], window, option["-ub"])
            caches[device] += first.cache.position_bytes * positions + first.cache.state_bytes
        weights[last] += model.output.size_bytes
        ratios = []
        for name, weight_mib, cache_mib, _ in answer.rows:
            device = "CPU" if name == "Host" else name
            assert weight_mib == weights[device] // MIB, (case, device)
            assert cache_mib == caches[device] // MIB, (case, device)
            own = [at for at, place in enumerate(layers) if place == device]
            if device == "CPU" or not any(model.layers[at][0].tensors for at in own):
                continue
            ours = compute_buffer_bytes(
                model,
                context=option["-c"],
                ubatch=option["-ub"],
                flash=option["-fa"] == "on",
                has_output=last == device,
                pipelined=case["devices"] == 2 and "CPU" not in answer.devices,
                divided=False,
                crossing=False,
                layers=own,
            )
            assert ours >= answer.compute[device] * MIB, (case, device)
            if option["-ctk"] == "f16":
                ratios.append(ours / answer.compute[device] / MIB)
        record = {"layers": runs(answer.devices), "rows": answer.rows, "compute": answer.compute}
        yield case | record, ratios


def compare_words(machine: Engine, count: int) -> Iterator[dict[str, Any]]:
    """Yield what the engine makes of random lines; AssertionError if we read one otherwise."""
    for case in word_cases(random.Random(1), count):
        recorded = [*case["words"], "--rpc", ",".join(ENDPOINTS)]
        words = case["words"]
        for fixed, own in zip(ENDPOINTS, machine.endpoints, strict=True):
            words = [word.replace(fixed, own) for word in words]
        sizes = {"layers": case["layers"]}
        with written(case["model"], case["kind"], **sizes) as (path, model):
            answer = machine.ask(path, [*words, "-c", 512])
        _check_reading(model, shlex.join(recorded), answer)
        moved = Counter(NAMES[place] for place in answer.overridden.values())
        rows = [(NAMES[name], weight_mib) for name, weight_mib, *_ in answer.rows]
        layers = [(NAMES[name], length) for name, length in runs(answer.devices)]
        yield case | {"words": recorded, "places": layers, "moved": moved, "rows": rows}


def _check_reading(model: GgufModel, text: str, answer: Answer) -> None:
    found = read_tensors(text, model, DEVICES)
    places = [*(first.device for first, _ in found.layers), found.output.device]
    assert places == [NAMES[name] for name in answer.devices], text
    moved = {name: device for half in found.halves for name, device in half.moved.items()}
    assert moved == {name: NAMES[place] for name, place in answer.overridden.items()}, text
    for name, weight_mib, *_ in answer.rows:
        assert weight_mib == found.weight_bytes[NAMES[name]] // MIB, text


def compare_writing(machine: Engine, count: int) -> None:
    """Write random placements as lines; AssertionError if the engine reads one otherwise."""
    rng = random.Random(2)
    for _ in range(count):
        name = rng.choice(("llama", "qwen3moe", "glm4moe", "granitehybrid", "gpt-oss"))
        with written(name, kind_of(rng, name), layers=rng.randint(2, 40)) as (path, model):
            able = [at for at, feed in enumerate(feeds_of(model)) if feed != "none"]
            places, output, on_host = placements(rng, len(model.layers), able)
            words = write_tensors(model, places, output, on_host)
            answer = machine.ask(path, [*words, "-c", 512])
        assert [NAMES[name] for name in answer.devices] == [*places, output], words
        matrices = {
            tensor.name
            for at in on_host
            for tensor in model.layers[at][1].tensors
            if "_exps" in tensor.name or feeds_of(model)[at] == "dense"
        }
        moved = {name for name in answer.overridden if places[int(name.split(".")[1])] != "cpu:0"}
        assert moved == matrices, words
        _check_reading(model, shlex.join(words), answer)


def best_split(
    machine: Engine, path: Path, model: GgufModel, capacities_mib: tuple[int, ...]
) -> tuple[list[str], list[int]]:
    """Return the line of the plan with the longest context, and what the engine says of it."""
    kind = "rtx-3090"  # whose speed does not count for a context
    devices = [Device(f"rpc:{at}", size * MIB, kind) for at, size in enumerate(capacities_mib)]
    costs = Costs(specs={kind: DEVICE_SPECS[kind]})
    found = plan_gguf(GgufJobs(model, Request(chunk=UBATCH), devices, costs), "context")
    words = found.line(found.plan)[3:]
    return words, totals_mib(machine, path, words)


def totals_mib(machine: Engine, path: Path, words: list[str]) -> list[int]:
    rows = sorted(machine.ask(path, words).rows)
    return [sum(sizes) for name, *sizes in rows if name != "Host"]


def compare_fit(machine: Engine) -> Iterator[str]:
    """Yield rows of a table: ``--fit`` beside our best split, by the engine's estimates."""
    with written("llama", "Q8_0") as (path, model):
        for capacities in CAPACITIES_MIB:
            theirs = machine.fit(path, capacities)
            their_mib = totals_mib(machine, path, theirs)
            ours, our_mib = best_split(machine, path, model, capacities)
            assert all(own <= most for own, most in zip(our_mib, capacities, strict=True))
            cells = (
                ", ".join(map(str, capacities)),
                *(f"`{shlex.join(theirs)}`", ", ".join(map(str, their_mib))),
                *(f"`{shlex.join(ours)}`", ", ".join(map(str, our_mib))),
                f"{int(ours[1]) / int(theirs[1]):.2f}",
            )
            yield f"| {' | '.join(cells)} |"


def record(name: str, found: list[dict[str, Any]]) -> None:
    lines = ",\n".join(map(json.dumps, found))
    (RECORDS / name).write_text(f"[\n{lines}\n]\n")


def main() -> None:
    """Run all comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binaries", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200, help="random cases of each kind")
    parser.add_argument("--record", action="store_true", help=f"write {RECORDS}")
    parser.add_argument(
        "--headers",
        type=float,
        metavar="SECONDS",
        help="compare plans for 50 headers on 10 machines with --fit, at random, for so long",
    )
    options = parser.parse_args()
    if options.headers is not None:
        with engine(options.binaries, SERVERS) as machine:
            print(f"llama.cpp {machine.build}\n")
            print_headers(machine, options.headers)
        return
    with engine(options.binaries) as machine:
        print(f"llama.cpp {machine.build}\n")
        lines = [*compare_words(machine, options.count)]
        print(f"* Lines read as the engine does: {len(lines)} of {options.count}.")
        compare_writing(machine, options.count)
        print(f"* Lines written, and read by the engine as meant: {options.count}.")
        found = [*compare_bytes(machine, options.count)]
        ratios = sorted(ratio for _, own in found for ratio in own)
        print(
            f"* Weights and caches equal to the MiB in {len(found)} cases; {len(ratios)} compute "
            f"buffers are {ratios[0]:.2f} to {ratios[-1]:.2f} times the engine's, the median "
            f"{ratios[len(ratios) // 2]:.2f}, nine of ten below "
            f"{ratios[len(ratios) * 9 // 10]:.2f}.\n"
        )
        print("| memory, MiB | `--fit` | it uses | ours | uses | context, ratio |")
        print("|---|---|---|---|---|---|")
        for row in compare_fit(machine):
            print(row, flush=True)
    if options.record:
        record("breakdowns.json", [case for case, _ in found[:90]])
        record("lines.json", lines[:90])


if __name__ == "__main__":
    main()
