"""Compare bytes, words and plans for GGUF files with llama.cpp itself; prints a Markdown table.

Needs a build of llama.cpp with RPC (``benchmarks/llama_cpp_engine.py`` says how), and no GPU: the
devices are two servers on loopback, and the files are sparse, with headers of real sizes.

Run ``python -m benchmarks.llama_cpp --binaries FOLDER``.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.llama_cpp_engine import Answer, Engine, engine
from fx_bridge.files.gguf_header import read_gguf
from fx_bridge.files.gguf_layers import GgufModel, gguf_model
from tests.support.llama_cpp_models import MODELS, write_model

CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
KINDS = ("Q8_0", "Q4_K", "Q3_K", "F16")
RECORD = Path("tests/data/llama_cpp/breakdowns.json")


def byte_cases(rng: random.Random, count: int) -> Iterator[dict[str, Any]]:
    """Yield models, and lines for them."""
    for at in range(count):
        name = [*MODELS][at % len(MODELS)]
        kind = "MXFP4" if name == "gpt-oss" else rng.choice(KINDS)
        layers = MODELS[name](kind).layers
        mode = rng.choice(("one", "two", "two", "partial"))
        items = layers + 1 if mode != "partial" else rng.randint(2, layers)
        first = rng.randint(1, items - 1)
        words = ["-c", rng.choice(CONTEXTS), "-ub", rng.choice((256, 512, 512, 512, 1024))]
        words += ["-fa", "off" if rng.random() < 0.2 else "on", "-ngl", items]
        words += [] if mode == "one" else ["-ts", f"{first},{items - first}"]
        cache = "f16" if "off" in words or rng.random() < 0.7 else "q8_0"
        words += ["-ctk", cache, "-ctv", cache]
        yield {"model": name, "kind": kind, "words": words, "devices": 1 + (mode != "one")}


def asked(machine: Engine, folder: Path, case: dict[str, Any]) -> tuple[Answer, GgufModel]:
    """Return what the engine says of a case, and the model as read here."""
    path = write_model(folder, case["model"], case["kind"])
    words = case["words"]
    cache = words[words.index("-ctk") + 1]
    model = gguf_model(read_gguf(path), cache_type_k=cache, cache_type_v=cache)
    try:
        return machine.ask(path, words, case["devices"]), model
    finally:
        path.unlink()


def main() -> None:
    """Run the comparisons that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binaries", type=Path, required=True)
    parser.add_argument("--record", action="store_true", help=f"write {RECORD}")
    options = parser.parse_args()
    with engine(options.binaries) as machine, tempfile.TemporaryDirectory() as folder:
        if options.record:
            found = []
            for case in byte_cases(random.Random(0), 90):
                answer, _ = asked(machine, Path(folder), case)
                layers = [(name, len([*own])) for name, own in groupby(answer.devices)]
                own = {"layers": layers, "rows": answer.rows, "compute": answer.compute}
                found.append(json.dumps(case | own))
            RECORD.write_text("[\n" + ",\n".join(found) + "\n]\n")


if __name__ == "__main__":
    main()
