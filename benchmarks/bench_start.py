"""What commands and imports take until they answer, in processor seconds, best of several runs.

.venv/bin/python benchmarks/bench_start.py --runs 5
"""

import argparse
import resource
import shlex
import subprocess
import sys

LINES = (
    "-c 'import torch, torch.export._trace'",
    "-c 'import torch, torch.export._trace; from transformers import GPT2LMHeadModel'",
    "-c 'import solver'",
    "-c 'import fxpartition; fxpartition.Device'",
    "-c 'import fx_bridge'",
    "-m fxpartition --help",
    "-m fxpartition plan --help",
    "-m fxpartition devices",
    "-m fxpartition plan gpt2 --devices 2xfoo",
    "-m fxpartition plan gpt2 --devices 2x3GB@a100",
    "-m fxpartition plan nosuchmodel --devices 2x3GB",
    "-m fxpartition plan gpt2 --objectiv step",
    "-m fxpartition plan gpt2 --devices 2x3GB --microbatches 4",
    "-m fxpartition serve gpt2 --devices 2x3GB --attention maths",
    "-m fxpartition solve published:layer.gnmt_inference",
    "-m fxpartition plan mlp --devices 2x3GB",
    "-m fxpartition plan gpt2 --devices 2x3GB",
    "-m fxpartition plan configuration:llama3-8b --devices 2x24GB",
    "-m fxpartition serve configuration:llama3-70b --devices 2x80GB@a100-80gb,4x24GB@rtx-4090 "
    "--objective throughput --for vllm",
)
"""Arguments of Python; the first two are what no capture can do without."""


def processor_s(words):
    """User and system seconds of one run, whatever it answers."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="the best of so many is printed")
    runs = parser.parse_args().runs
    for line in LINES:
        words = shlex.split(line)
        print(f"{min(processor_s(words) for _ in range(runs)):6.2f} s  python {line}", flush=True)


if __name__ == "__main__":
    main()
