"""Decoders that are trained, on the meta device.

    python benchmarks/recomputed_models.py NAME PROBLEM.json [--half-layers]

Those of transformers with random weights, and attention that is causal without a mask, as in
published trainings: where torch.export captures a model, transformers adds one, and attention with
a mask has no flash kernel. Saved with one device without a limit and no transfer times. With
``--half-layers`` stages begin and end before norms alone: before attention, and after it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from data_sheets import DATA_SHEETS
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from fx_bridge import CapturedGraph, Costs, Training, capture, to_digraph
from solver import ColocationGroup, Device, save_problem
from solver.io.digraph import problem_from_digraph

DEVICE_CLASS = "a100-80gb"


def llama(width: int, hidden: int, layers: int, heads: int) -> tuple[Any, Any, int, int]:
    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=width,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        use_cache=False,
    )
    return LlamaForCausalLM, config, 1, 4096


MODELS = {
    "llama3-8b": llama(4096, 14336, 32, 32),
    "llama3-70b": llama(8192, 28672, 80, 64),
    "gpt2-medium": (
        GPT2LMHeadModel,
        GPT2Config(
            n_embd=1024,
            n_layer=24,
            n_head=16,
            use_cache=False,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        ),
        4,
        1024,
    ),
}


class Loss(nn.Module):
    """Returns the loss of predicting each token."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens, labels=tokens).loss


def trained(
    build: Any, config: Any, batch: int, length: int, device: str
) -> tuple[nn.Module, Tensor]:
    """Return a model in bfloat16 that returns its loss, and tokens, on a device."""
    AttentionInterface.register("causal", sdpa_attention_forward)
    config._attn_implementation = "causal"
    with torch.device(device):
        model = Loss(build(config)).bfloat16()
        tokens = torch.randint(config.vocab_size, (batch, length))
    return model, tokens


def half_layers(captured: CapturedGraph, model: nn.Module) -> list[ColocationGroup]:
    """Return what lies between norms, in the execution order."""
    norms = {path for path, module in model.named_modules() if "Norm" in type(module).__name__}
    halves: list[list[str]] = [[]]
    for name, calls in captured.modules.calls.items():
        begun = next((call.path for call in calls if call.path in norms), None)
        if begun is not None:
            norms.remove(begun)
            halves.append([])
        halves[-1].append(name)
    return [ColocationGroup(tuple(half), "half of a layer") for half in halves if half]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("path", type=Path)
    parser.add_argument("--half-layers", action="store_true")
    options = parser.parse_args()
    model, tokens = trained(*MODELS[options.name], "meta")
    captured = capture(model, (tokens,))
    training = Training(recompute="auto", tied_weights="sum")
    costs = Costs(specs=DATA_SHEETS)
    graph = to_digraph(captured, training=training, costs=costs)
    device = Device("d", None, device_class=DEVICE_CLASS)
    problem = problem_from_digraph(graph, [device], memory_model="training")
    problem = problem.replace(recompute="auto", objective="bottleneck", schedule="1f1b")
    if options.half_layers:
        problem = problem.replace(colocation=half_layers(captured, model))
    save_problem(problem, options.path)


if __name__ == "__main__":
    main()
