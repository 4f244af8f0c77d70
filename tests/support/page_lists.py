"""Which commands and blocks of the pages the default tests do not run, and why."""

from typing import Final

NIGHTLY: Final = {
    "python benchmarks/recomputed_models.py llama3-8b llama3-8b.json": "captures 1,900 nodes twice",
    "fxpartition solve llama3-8b.json --devices 8x27.5GB@a100-80gb --microbatches 32 "
    "--deterministic --time-limit 60": ("searches for half a minute"),
    "fxpartition serve configuration:llama3-8b --devices 24GB@a100-80gb,12GB@a100-80gb "
    "--objective context --whole-layers": "captures 1,900 nodes twice",
    "fxpartition serve configuration:llama3-8b --devices 24GB@a100-80gb,12GB@rtx-3090 "
    "--objective all --whole-layers": "captures 1,900 nodes twice",
    "fxpartition serve configuration:llama3-8b --devices 8GB@rtx-4090 --host 64GB "
    "--objective token --time-limit 20": "captures 1,900 nodes twice",
    "fxpartition serve configuration:mixtral-8x7b --devices 24GB@rtx-4090 --host 128GB "
    '--objective token --for llama.cpp --words "-ngl 33 --n-cpu-moe 30"': "captures 3,700 nodes",
    "fxpartition serve configuration:qwen3-moe-30b --devices 8GB@rtx-4060 --host 64GB@ddr5-5600 "
    "--objective token --for llama.cpp": "captures 6,000 nodes",
    "fxpartition plan llama3-70b --devices 2x80GB,2x24GB --objective devices "
    "--memory-model weights": "captures 5,900 nodes",
    "fxpartition compare gpt2 branches --out report/": "plans and splits six times",
    "fxpartition export gpt2 --devices 3x300MB --out gpt2.json": "captures gpt2",
    "fxpartition solve gpt2.json --json": "reads what the command before it wrote",
    "fxpartition plan gpt2 --devices 300MB,240MB,200MB --out gpt2-plan.json": "captures gpt2",
    "fxpartition split gpt2 --plan gpt2-plan.json": "captures gpt2",
    "fxpartition plan gpt2 --devices 4x24GiB --cut-after transformer.h.3 "
    "--cut-after transformer.h.7.mlp.c_fc --pin lm_head=cuda:1 --pin transformer.h.8=2": (
        "captures gpt2"
    ),
    "torchrun --nproc_per_node=2 -m experiments.run_pipeline plan.json mlp --weights stages "
    "--device cpu --train --steps 3 --check": (
        "starts processes; test_torchrun_command.py trains so and compares the losses"
    ),
    "torchrun --nproc_per_node=2 -m experiments.run_pipeline step.json mlp --weights step-stages "
    "--device cpu --microbatches 4 --check": "starts processes, as the command above it does",
    "fxpartition plan resnet-50 --memory-model training --schedule 1f1b --microbatches 8 "
    "--devices 3x225MB --recompute auto --out resnet.json": "searches for a minute",
    "torchrun --nproc_per_node=3 -m experiments.run_pipeline resnet.json resnet-50 --train "
    "--microbatches 8 --device cpu --check": "reads what the command before it wrote",
    "torchrun --nproc_per_node=2 -m experiments.run_pipeline tied.json tiny-gpt2 --train "
    "--tied-weights sum --microbatches 4 --device cpu --check": (
        "starts processes; test_processes.py sums gradients"
    ),
    "fxpartition solve graph.json --deterministic --time-limit 30": "searches for half a minute",
    "fxpartition profile gpt2 --training --processes 2 --out gpt2.profile.json": "measures",
    "fxpartition plan gpt2 --devices 2x3GB --memory-model training --profile gpt2.profile.json": (
        "reads what the command before it measured"
    ),
    "fxpartition run gpt2 --memory-model training --microbatches 4": "measures",
    "python benchmarks/bench_prediction.py": "measures for minutes",
    "python -m benchmarks.coverage --json rows.json": "captures 154 models",
}
"""Command: why it takes long. ``test_documents_nightly.py`` runs them."""

ELSEWHERE: Final = {
    'python3 -m venv .venv && .venv/bin/pip install -c constraints.txt ".[hf]" && '
    ".venv/bin/fxpartition compare --out report/": (
        "installs; .ci/run does the like, and the nightly test runs its last part"
    ),
    'python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e ".[hf,test]" && '
    ".venv/bin/python -m pytest": "installs and runs all tests; .ci/run runs it",
    "torchrun --nnodes=2 --node_rank=0 --nproc_per_node=8 --rdzv_endpoint=first-host:29500 "
    "-m experiments.run_pipeline plan.json MODEL --weights stages": (
        "needs two hosts; test_torchrun_command.py starts two torchruns on one"
    ),
    "error: rank 0 broke off in step 605 (Read error [127.0.0.1]:11494: Connection reset by "
    "peer): another process has ended, or the connection to it was lost": (
        "needs a process that is killed; test_torchrun_command.py kills one"
    ),
    "from transformers.distributed import DistributedConfig": (
        "needs three processes; test_transformers_ranks.py starts three"
    ),
    "row(d, t) = weights_d + received_d + saved_d": "a formula",
    "F(t) = sum over u <= t of held(u) + sum over u <= t <= last(u) of storage - held of the"
    " storage": "formulas",
    "x_on_cuda_0 = move(x, device(type='cuda', index=0))": (
        "needs two GPUs; test_placed_graph.py reads such code on fake ones"
    ),
    "model weights captured by nodes operators made up capture export splits equal gradients "
    "peak memory": ("what the nightly command above it printed; its times differ"),
}
"""Command, or first line of a block that nothing prints: why no test runs it as it stands."""

LEFT_OUT: Final = frozenset({*NIGHTLY, *ELSEWHERE})

WITH_PROCESSES: Final = ("docs/pipelines.md", "docs/running.md", "docs/sweeps.md")
"""Pages whose commands start processes."""

LONG: Final = ("docs/handover.md", "docs/planners.md", "docs/serving.md", "docs/training.md")
"""Pages that capture and plan for ten seconds; like those with processes, ``--deep`` runs them."""

WIDE: Final = frozenset(
    {
        "docs/batch.md",
        "docs/coverage.md",
        "docs/cuts.md",
        "docs/devices.md",
        "docs/handover.md",
        "docs/memory.md",
        "docs/pipelines.md",
        "docs/placement.md",
        "docs/planners.md",
        "docs/report.md",
        "docs/running.md",
        "docs/splitting.md",
        "docs/sweeps.md",
        "docs/terminal.md",
    }
)
"""Pages with tables or output of more than 120 columns; the list can only shrink."""
