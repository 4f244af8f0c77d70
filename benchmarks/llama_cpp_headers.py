"""Commands for many headers of GGUF files and machines, beside ``--fit`` of llama.cpp."""

from __future__ import annotations

import io
import itertools
import json
import random
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.llama_cpp_engine import MIB, Answer, Engine
from experiments.cli import main
from experiments.problems.devices import parse_devices
from tests.support.llama_cpp_models import write_model

MODELS: Final = ("llama", "qwen2", "qwen3moe", "gemma3", "deepseek2", "mamba", "granitehybrid",
                 "gpt-oss", "glm4moe", "qwen3next")  # fmt: skip
KINDS: Final = ("F16", "Q8_0", "Q6_K", "Q4_K", "Q3_K")
MACHINES: Final = (
    *("8GB@rtx-4060 32GB@ddr5-5600", "12GB@rtx-3060 64GB@ddr4-3200"),
    *("24GB@rtx-4090 64GB@ddr5-5600", "24GB@rtx-3090,12GB@rtx-3060 64GB@ddr5-5600"),
    *("8GB@rtx-3070,12GB@rtx-3060 32GB@ddr4-3200", "16GB@rtx-4080,16GB@t4 128GB@ddr5-4800"),
    *("24GB@rtx-3090,24GB@rtx-3090", "24GB@rtx-4090,12GB@rtx-3060"),
    "16GB@v100,10GB@rtx-3080,8GB@rtx-3070 64GB@ddr4-3200",
    "24GB@rtx-3090,24GB@rtx-3090,24GB@rtx-3090,16GB@v100",
)
"""Devices, and a host if there is one."""
SERVERS: Final = 4
"""Devices of the largest machine."""
_SLOWEST: Final = 20
_ALONE: Final = (
    "import sys; from experiments.cli import main; main(sys.argv[1:]); "
    "assert 'torch' not in sys.modules"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A command, its answer, and its seconds in this process."""

    model: str
    line: tuple[str, ...]
    answer: dict[str, Any]
    seconds: float


@dataclass(frozen=True, slots=True)
class Compared:
    """The engine's word on a plan and on that of ``--fit``, and the longer context or less time."""

    model: str
    is_above: bool
    fit_is_above: bool
    ratio: float | None


def ask_all(folder: Path) -> Iterator[Asked]:
    """Yield the answers for headers on machines, for a context and for a token, at random."""
    paths = {(name, kind): write_model(folder, name, kind) for name in MODELS for kind in KINDS}
    cases = [*itertools.product(paths, MACHINES, ("context", "token"))]
    random.Random(0).shuffle(cases)
    for (name, kind), machine, objective in cases:
        devices, *host = machine.split()
        line = ["serve", str(paths[name, kind]), "--json", "--devices", devices, "--usable", "1"]
        line += [*(["--host", *host] if host else []), "--objective", objective]
        start = time.perf_counter()
        yield Asked(name, tuple(line), answered(line), time.perf_counter() - start)


def answered(line: Sequence[str]) -> dict[str, Any]:
    """Return the answer of a command that is run in this process."""
    with redirect_stdout(io.StringIO()) as said:
        main(line)
    found: dict[str, Any] = json.loads(said.getvalue())
    return found


def seconds_alone(asked: Asked) -> float:
    """Return the seconds of a command in a process of its own, which loads no torch."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", _ALONE, *asked.line], capture_output=True)
    assert not done.returncode, done.stderr
    return time.perf_counter() - start


def compare(machine: Engine, asked: Asked) -> Compared:
    """Return what the engine says of a plan, and of that of ``--fit``."""
    path, answer = Path(asked.line[1]), asked.answer
    named = asked.line[asked.line.index("--devices") + 1]
    devices = parse_devices(named, "--devices").devices
    limits = [-(-(device.memory_bytes or 0) // MIB) for device in devices]
    words = [_at_servers(word, machine.endpoints) for word in answer["words"][3:]]
    is_longest = answer["objective"] == "context"
    theirs = machine.fit(path, limits, [] if is_longest else ["-c", str(answer["context"])])
    fitted = machine.ask(path, theirs, len(limits))
    on_host = {name for name, place in fitted.overridden.items() if place == "CPU"}
    ratio = None
    if "--host" in asked.line or not on_host | ({*fitted.devices} & {"CPU"}):
        if is_longest:
            ratio = answer["context"] / int(theirs[theirs.index("-c") + 1])
        else:
            if len(limits) > 1 and "-ts" not in theirs:
                dealt = Counter(fitted.devices)
                counts = (str(dealt[f"RPC{at}"]) for at in range(len(limits)))
                theirs = ["-ts", ",".join(counts), *theirs]
            their_ns = token_ns(asked, theirs, machine.endpoints)
            ratio = None if their_ns is None else their_ns / answer["token_ns"]
    ours = machine.ask(path, words, len(limits))
    return Compared(asked.model, _is_above(ours, limits), _is_above(fitted, limits), ratio)


def _is_above(answer: Answer, limits_mib: Sequence[int]) -> bool:
    used = {name: sum(sizes) for name, *sizes in answer.rows}
    return any(used.get(f"RPC{at}", 0) > limit for at, limit in enumerate(limits_mib))


def token_ns(asked: Asked, words: Sequence[str], endpoints: Sequence[str]) -> float | None:
    """Return the time of a token of a line of ``--fit``, on devices with any memory.

    With blocks that predict several tokens it may move matrices of a layer before others of the
    same device, which has no time here: None.
    """
    text = shlex.join(words)
    for at, endpoint in enumerate(endpoints):
        text = re.sub(rf"RPC\d+\[{re.escape(endpoint)}\]", f"CUDA{at}", text)
    line = [re.sub(r"\d+GB@", "9000GB@", word) for word in asked.line]
    found: float | None = answered([*line, "--words", text])["given"]["value"]
    return found


def _at_servers(word: str, endpoints: Sequence[str]) -> str:
    """Return an argument with the names of servers; ``-ot`` has them with their addresses."""
    if "=" not in word:
        return word.replace("CUDA", "RPC")
    return re.sub(r"=CUDA(\d+)", lambda found: f"=RPC0[{endpoints[int(found[1])]}]", word)


def print_headers(machine: Engine, seconds: float) -> None:
    """Print a table by model, after random commands for some seconds."""
    asked: list[Asked] = []
    compared: dict[str, list[tuple[str, Compared]]] = {name: [] for name in MODELS}
    end = time.perf_counter() + seconds
    with tempfile.TemporaryDirectory() as folder:
        for each in ask_all(Path(folder)):
            asked.append(each)
            if "words" in each.answer:
                found = compare(machine, each)
                compared[each.model].append((each.answer["objective"], found))
            if time.perf_counter() > end:
                break
        assert "torch" not in sys.modules
        slowest = sorted(asked, key=lambda each: -each.seconds)[:_SLOWEST]
        alone = [seconds_alone(each) for each in slowest]
    print(f"* The {len(alone)} slowest commands take {min(alone):.2f} to {max(alone):.2f} s.\n")
    print("| header | answers | proven | asked | context | tokens/s | above, `--fit` | above |")
    print("|---|---|---|---|---|---|---|---|")
    for name in MODELS:
        own = [each.answer["status"] for each in asked if each.model == name]
        kept = [each for _, each in compared[name]]
        cells = [name, len(own), sum(status != "feasible" for status in own), len(kept)]
        cells += [_ratios(compared[name], objective) for objective in ("context", "token")]
        cells += [sum(each.fit_is_above for each in kept), sum(each.is_above for each in kept)]
        print(f"| {' | '.join(map(str, cells))} |")


def _ratios(found: Sequence[tuple[str, Compared]], objective: str) -> str:
    """Return the least ratio, the median and the largest, and their number."""
    own = [each.ratio for name, each in found if name == objective and each.ratio is not None]
    if not own:
        return ""
    return f"{min(own):.3f}, {statistics.median(own):.2f}, {max(own):.2f} of {len(own)}"
