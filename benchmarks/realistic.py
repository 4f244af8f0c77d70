"""Models of real size, trained as people train them: what a search proves of each.

    python benchmarks/realistic.py [--only NAME ...] [--tight] [--inference] [--folder DIR]

Models have the sizes of their authors and weights on the meta device, in bfloat16, with AdamW, on 8
equal A100 and on 4 A100 and 4 RTX 3090, under 1F1B of 8 microbatches over PCIe; `--tight`: where
memory binds; `--inference`: the same models as inference of the batch, without a schedule.
`--folder` keeps the problems, so that rows are quick to repeat.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from data_sheets import data_sheet
from fleets import ROOMY, TIGHT
from torch import Tensor, nn

from fx_bridge import Costs, Training, capture, to_digraph
from solver import (
    PCIE,
    Device,
    PartitionProblem,
    SolveLimits,
    load_problem,
    problem_from_digraph,
    save_problem,
    solve,
)
from solver.model.pipeline import Pipeline

CLASSES: Final = ("a100-80gb", "rtx-3090")
MICROBATCHES: Final = 8


class Loss(nn.Module):
    """Returns what is minimised, of arguments by their names."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], always: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names, self.always = model, names, always

    def forward(self, *values: Tensor) -> Tensor:
        given: dict[str, Any] = dict.fromkeys(self.always, True)
        for name, value in zip(self.names, values, strict=True):
            outer, _, inner = name.partition(".")
            if inner:
                given.setdefault(outer, {})[inner] = value
            else:
                given[outer] = value
        found = self.model(**given)
        loss: Tensor | None = getattr(found, "loss", None)
        return found[0].float().mean() if loss is None else loss


Shape = tuple[int | None, tuple[int, ...]]
"""Numbers below which integers are drawn (None: no integers), and how many."""


@dataclass(frozen=True)
class Model:
    """A model of transformers, or of diffusers.

    Attributes
    ----------
    model, configuration : str
        Names of its class, and of that of its configuration; without the latter it is diffusers'.
    inputs : mapping of str to Shape
        A microbatch, by argument, or by argument and key of it.
    sizes : mapping
        Fields of the configuration that are not defaults.
    always : tuple of str
        Arguments that are true.
    """

    model: str
    configuration: str
    inputs: Mapping[str, Shape]
    sizes: Mapping[str, Any]
    always: tuple[str, ...] = ()

    def built(self, *, is_inference: bool) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Return the module and a batch, on the meta device; in training with its loss."""
        shapes = dict(self.inputs)
        if is_inference:
            targets = shapes.pop("labels", None)
            if targets is not None and "Conditional" in self.model:
                shapes["decoder_input_ids"] = targets
        package = importlib.import_module("transformers" if self.configuration else "diffusers")
        with torch.device("meta"):
            if self.configuration:
                settings = getattr(package, self.configuration)(**self.sizes)
                model = getattr(package, self.model)(settings)
            else:
                model = getattr(package, self.model)(**self.sizes)
            inputs = tuple(
                torch.randn(shape, dtype=torch.bfloat16)
                if below is None
                else torch.randint(below, shape)
                for below, shape in shapes.values()
            )
            always = () if is_inference else self.always
            return Loss(model, tuple(shapes), always).bfloat16(), inputs


def _text(below: int, *shape: int) -> dict[str, Shape]:
    return {"input_ids": (below, shape), "labels": (below, shape)}


def _images(count: int) -> dict[str, Shape]:
    return {"pixel_values": (None, (count, 3, 224, 224)), "labels": (1000, (count,))}


_WIDE: Final = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
_PATCHES: Final = {"patch_size": 14, "image_size": 224}
MODELS: Final[Mapping[str, Model]] = {
    "t5-3b": Model(
        "T5ForConditionalGeneration",
        "T5Config",
        {"input_ids": (32128, (8, 512)), "labels": (32128, (8, 256))},
        {
            "vocab_size": 32128,
            "d_model": 1024,
            "d_kv": 128,
            "d_ff": 16384,
            "num_layers": 24,
            "num_heads": 32,
            "use_cache": False,
            "decoder_start_token_id": 0,
        },
    ),
    "clip-l": Model(
        "CLIPModel",
        "CLIPConfig",
        {"input_ids": (49408, (64, 77)), "pixel_values": (None, (64, 3, 224, 224))},
        {
            "projection_dim": 768,
            "text_config": {
                "hidden_size": 768,
                "intermediate_size": 3072,
                "num_hidden_layers": 12,
                "num_attention_heads": 12,
                "projection_dim": 768,
            },
            "vision_config": {
                **_WIDE,
                **_PATCHES,
                "intermediate_size": 4096,
                "projection_dim": 768,
            },
        },
        ("return_loss",),
    ),
    "llama3-8b": Model(
        "LlamaForCausalLM",
        "LlamaConfig",
        _text(128256, 1, 2048),
        {
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "use_cache": False,
        },
    ),
    "whisper-medium": Model(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {"input_features": (None, (8, 80, 3000)), "labels": (51865, (8, 256))},
        {
            "d_model": 1024,
            "encoder_layers": 24,
            "decoder_layers": 24,
            "encoder_attention_heads": 16,
            "decoder_attention_heads": 16,
            "encoder_ffn_dim": 4096,
            "decoder_ffn_dim": 4096,
            "use_cache": False,
            "num_mel_bins": 80,
            "vocab_size": 51865,
        },
    ),
    "bert-large": Model(
        "BertForMaskedLM",
        "BertConfig",
        _text(30522, 16, 512),
        {**_WIDE, "intermediate_size": 4096},
    ),
    "gpt2-medium": Model(
        "GPT2LMHeadModel",
        "GPT2Config",
        _text(50257, 4, 1024),
        {"n_embd": 1024, "n_layer": 24, "n_head": 16, "use_cache": False},
    ),
    "vit-h": Model(
        "ViTForImageClassification",
        "ViTConfig",
        _images(64),
        {
            **_PATCHES,
            "hidden_size": 1280,
            "num_hidden_layers": 32,
            "num_attention_heads": 16,
            "intermediate_size": 5120,
            "num_labels": 1000,
        },
    ),
    "bart-large": Model(
        "BartForConditionalGeneration",
        "BartConfig",
        {"input_ids": (50265, (8, 512)), "labels": (50265, (8, 256))},
        {"use_cache": False},
    ),
    "swin-l": Model(
        "SwinForImageClassification",
        "SwinConfig",
        _images(64),
        {
            "embed_dim": 192,
            "depths": [2, 2, 18, 2],
            "num_heads": [6, 12, 24, 48],
            "image_size": 224,
            "num_labels": 1000,
        },
    ),
    "mixtral": Model(
        "MixtralForCausalLM",
        "MixtralConfig",
        _text(32000, 1, 2048),
        {"num_hidden_layers": 8, "use_cache": False},
    ),
    "sdxl": Model(
        "UNet2DConditionModel",
        "",
        {
            "sample": (None, (4, 4, 128, 128)),
            "timestep": (1000, (4,)),
            "encoder_hidden_states": (None, (4, 77, 2048)),
            "added_cond_kwargs.text_embeds": (None, (4, 1280)),
            "added_cond_kwargs.time_ids": (None, (4, 6)),
        },
        {
            "sample_size": 128,
            "down_block_types": ("DownBlock2D", *2 * ("CrossAttnDownBlock2D",)),
            "up_block_types": (*2 * ("CrossAttnUpBlock2D",), "UpBlock2D"),
            "block_out_channels": (320, 640, 1280),
            "transformer_layers_per_block": (1, 2, 10),
            "attention_head_dim": (5, 10, 20),
            "cross_attention_dim": 2048,
            "use_linear_projection": True,
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 256,
            "projection_class_embeddings_input_dim": 2816,
        },
    ),
    "resnet-152": Model(
        "ResNetForImageClassification",
        "ResNetConfig",
        _images(64),
        {"depths": [3, 8, 36, 3], "num_labels": 1000},
    ),
}


def devices(fleet: str) -> list[Device]:
    """Return the devices of a fleet: of each class their number and their gigabytes."""
    return [
        Device(f"{name}-{number}", gigabytes * 10**9, name)
        for name, part in zip(CLASSES, fleet.split("+"), strict=False)
        for count, gigabytes in [map(int, part.split("x"))]
        for number in range(count)
    ]


def problem(
    name: str, fleet: str, folder: Path | None, *, is_inference: bool = False
) -> PartitionProblem:
    """Return a model on devices; of a folder it is read, and kept there."""
    ending = "-inference" * is_inference
    path = None if folder is None else folder / f"{name}{ending}.json"
    if path is not None and path.exists():
        return load_problem(path).replace(devices=devices(fleet))
    module, inputs = MODELS[name].built(is_inference=is_inference)
    costs = Costs(specs={each: data_sheet(each) for each in CLASSES}, interconnect=PCIE)
    captured = costs.with_kernels(capture(module, inputs))
    some = devices("4x80+4x24")
    if is_inference:
        graph = to_digraph(captured, costs=costs)
        made = problem_from_digraph(graph, some, interconnect=PCIE, objective="bottleneck")
    else:
        training = Training(optimizer="adamw", tied_weights="sum")
        made = problem_from_digraph(
            to_digraph(captured, costs=costs, training=training),
            some,
            memory_model="training",
            **Pipeline("1f1b", microbatches=MICROBATCHES).settings("bottleneck", PCIE),
        )
    if path is not None:
        save_problem(made, path)
    return made.replace(devices=devices(fleet))


@dataclass(frozen=True, slots=True)
class Row:
    """What a search says of a model on devices."""

    name: str
    status: str
    gap_percent: float | None
    value_ms: float | None
    bound_ms: float | None
    wall_s: float
    cpu_s: float
    proven_by: str


def searched(name: str, fleet: str, options: argparse.Namespace) -> Row:
    """Search a problem."""
    case = problem(name, fleet, options.folder, is_inference=options.inference)
    limits = SolveLimits(options.time_limit, workers=options.workers, seed=options.seed)
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    result = solve(case, limits, without=options.without)
    wall_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
    bounds = result.objective_bounds
    return Row(
        f"{name}, {fleet}",
        result.status.value,
        None if result.gap is None else 100 * result.gap,
        None if result.objective is None else result.objective / 1e6,
        None if not bounds else bounds[0] / 1e6,
        wall_s,
        cpu_s,
        result.log[-1].step if result.log else "",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--fleets", nargs="+", default=list(ROOMY))
    parser.add_argument("--tight", action="store_true", help="fleets in which memory binds")
    parser.add_argument("--inference", action="store_true", help="of the batch, peer to peer")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = []
    for name in options.only:
        for fleet in TIGHT.get(name, ()) if options.tight else options.fleets:
            row = searched(name, fleet, options)
            found.append(row)
            gap = "-" if row.gap_percent is None else f"{row.gap_percent:.3f} %"
            value = "-" if row.value_ms is None else f"{row.value_ms:.6f} ms"
            print(
                f"{row.name}: {row.status}, gap {gap}, {value}, {row.wall_s:.1f} s "
                f"({row.cpu_s:.1f} s of processors), last step {row.proven_by}",
                flush=True,
            )
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in found], indent=1))


if __name__ == "__main__":
    main()
