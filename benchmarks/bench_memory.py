"""What the memory profile says beside what PyTorch holds, model by model.

    python benchmarks/bench_memory.py [MODEL ...]

Forward pass and training step (AdamW) of the small models of ``tests/support/memory_models.py``:
the estimate, the storage tracker's bytes on real CPU tensors, and their ratio. Where there is a
CUDA device, also what its allocator held at most, for every stage of some zoo models cut in
three, each alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from fx_bridge.capture.graph import capture, placeholder_values
from fx_bridge.memory.profile import peak_memory
from tests.support.cuda_memory import CUDA_MODELS, cuda_rows
from tests.support.memory_models import INFERENCE_ONLY, MODELS, build
from tests.support.storage_tracker import track_forward, track_training


def adamw(parameters):
    return torch.optim.AdamW(parameters, 1e-3, foreach=False)


def rows(name):
    """Yield (what, estimate, tracked) for a model."""
    model, args, kwargs = build(name)
    captured = capture(model, args, kwargs)
    inputs = list(placeholder_values(captured, args, kwargs))
    tracker = track_forward(captured.module, inputs, interpret=True)
    yield "forward", peak_memory(captured, runner="interpreter"), max(tracker.peaks.values())
    if name not in INFERENCE_ONLY:
        tracker = track_training(captured.module, inputs, optimizer=adamw, masters=True)
        estimate = peak_memory(captured, training=True, runner="interpreter")
        yield "training", estimate, max(tracker.peaks.values())


def main(names):
    print(f"{'model':<14}{'':<10}{'estimate':>14}{'tracker':>14}{'ratio':>10}")
    for name in names:
        for what, estimate, tracked in rows(name):
            print(f"{name:<14}{what:<10}{estimate:>14,}{tracked:>14,}{estimate / tracked:>10.4f}")
    if not torch.cuda.is_available():
        print("no CUDA device: the allocator's column is left out")
        return
    print(f"\n{'stage':<24}{'':<10}{'estimate':>14}{'CUDA':>14}{'ratio':>10}")
    for name in CUDA_MODELS:
        for stage, what, estimate, held in cuda_rows(name):
            print(f"{stage:<24}{what:<10}{estimate:>14,}{held:>14,}{estimate / held:>10.4f}")


if __name__ == "__main__":
    main(sys.argv[1:] or list(MODELS))
