"""Words for engines, read by the engines' own code on a CPU: random plans, and where layers are.

A wheel of each engine is downloaded without its dependencies. The file that reads the words is
imported in a process of its own, and the layers of every stage are compared with the plan's.

    python benchmarks/engines.py --folder build/engines --plans 30
"""

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from fx_bridge.interop.engines import ENGINES
from fx_bridge.interop.stage_layers import LayerNames, StageLayers

SCRIPT = Path(__file__).with_name("engine_readers.py")


@dataclass(frozen=True)
class Row:
    """An engine's wheel, the function of `engine_readers.py` that asks it, and what is asked."""

    engine: str
    wheel: str
    reader: str
    asked: str
    most_chunks: int = 1


ROWS = (
    Row("vllm", "vllm==0.33.0", "vllm", "get_pp_indices"),
    Row("sglang", "sglang==0.5.23", "sglang", "get_pp_indices"),
    Row("megatron", "megatron-core==0.16.1", "megatron", "PipelineParallelLayerLayout", 3),
    Row("megatron-bridge", "megatron-core==0.16.1", "megatron", "the same, as lists", 3),
    Row("nemo", "nemo-automodel==0.7.0", "nemo", "split_model_into_stages", 3),
    Row("torchtitan", "torchtitan==0.3.0", "titan", "_split_module", 3),
    Row("torchtitan", "torchtitan==0.3.0", "titan_transformers", "pipeline_module_split", 3),
    Row("mindformers", "mindformers==2.1.0", "mindformers", "LayerSetting", 3),
    Row("mindformers-pynative", "mindformers==2.1.0", "pynative", "PpLayerSetting", 3),
    Row("transformers", "transformers==5.23.0", "transformers", "PipelineStage"),
    Row("tensorrt-llm", "tensorrt-llm==1.2.1", "tensorrt", "Mapping.pp_layers"),
)
NAMES = {
    "titan": (("tok_embeddings",), "layers", ("norm", "lm_head")),
    "titan_transformers": (
        ("model.embed_tokens", "model.rotary_emb"),
        "model.layers",
        ("model.norm", "lm_head"),
    ),
}
NAMES["nemo"] = NAMES["titan_transformers"]


def random_case(rng, row):
    """Stages with layers and ends, and their words."""
    size = rng.randint(2, 5)
    chunks = rng.randint(1, row.most_chunks)
    layers = rng.randint(size * chunks, 24)
    cuts = sorted(rng.sample(range(1, layers), size * chunks - 1))
    counts = [end - first for first, end in itertools.pairwise((0, *cuts, layers))]
    if ENGINES[row.engine].bare_ends and rng.random() < 0.3 and len(counts) > 2:
        counts = [0, counts[0] + counts[1], *counts[2:]]
    last = len(counts) - 1
    stages = [
        StageLayers(f"cuda:{at % size}", count, at == 0, at == last, at // size)
        for at, count in enumerate(counts)
    ]
    embedding, path, head = NAMES.get(row.reader, NAMES["nemo"])
    names = LayerNames(tuple(f"{path}.{at}" for at in range(layers)), embedding, head)
    words = ENGINES[row.engine].write(names, stages)
    return {"layers": layers, "size": size, "counts": counts, "words": words}


def fetched(wheel, folder):
    """The Python files of a wheel, in a folder; None if there is no wheel for this machine."""
    there = folder / wheel.replace("==", "-")
    if not there.exists():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", wheel]
        command += ["--only-binary=:all:", "--dest", str(folder / "wheels" / there.name)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return None
        for file in (folder / "wheels" / there.name).glob("*.whl"):
            with zipfile.ZipFile(file) as archive:
                code = [name for name in archive.namelist() if name.endswith((".py", ".json"))]
                archive.extractall(there, code)
    return there


def expected(counts):
    """Layers of stages by number, with -1 for the embedding and -2 for the head."""
    edges = list(itertools.accumulate(counts, initial=0))
    stages = [[*range(first, end)] for first, end in itertools.pairwise(edges)]
    return [[-1, *stages[0]], *stages[1:-1], [*stages[-1], -2]]


def compared(row, folder, plans):
    """How many plans an engine reads as they are, or why it reads none."""
    there = fetched(row.wheel, folder)
    if there is None:
        return "no wheel"
    rng = random.Random(row.reader)
    cases = [random_case(rng, row) for _ in range(plans)]
    command = [sys.executable, str(SCRIPT), row.reader, str(there)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(there), str(Path.cwd())])}
    ran = subprocess.run(
        command,
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if ran.returncode:
        return ran.stderr.strip().splitlines()[-1][:100]
    answers = json.loads(ran.stdout.splitlines()[-1])
    right = 0
    for case, answer in zip(cases, answers, strict=True):
        same = answer == expected(case["counts"])
        right += same
        if not same:
            print(row.engine, case["words"], answer, file=sys.stderr)
    return f"{right} of {plans}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("build/engines"))
    parser.add_argument("--plans", type=int, default=30)
    parser.add_argument("--only", nargs="*", default=[row.reader for row in ROWS])
    arguments = parser.parse_args()
    for row in ROWS:
        if row.reader in arguments.only:
            found = compared(row, arguments.folder, arguments.plans)
            print(f"| {row.engine} | {row.wheel} | {row.asked} | {found} |", flush=True)


if __name__ == "__main__":
    main()
