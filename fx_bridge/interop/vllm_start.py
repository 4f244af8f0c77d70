"""vLLM with the layers of a plan: the work of its plug-in if ``FXPARTITION_PLAN`` names a file.

vLLM loads plug-ins in each of its processes. All of them read the layers of stages from
``VLLM_PP_LAYER_PARTITION``; the one that reads the arguments knows the model and the number of
stages. Neither torch nor vLLM is imported.
"""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass
from typing import Any, Final, Literal

from fx_bridge.interop.words import VISIBLE
from solver import PartitionError
from solver.io.files import read_json
from solver.io.json_fields import read_as
from solver.model.quantities import counted
from solver.model.text import shortened

PARTITION: Final = "VLLM_PP_LAYER_PARTITION"


@dataclass(frozen=True, slots=True)
class StartFile:
    """The layers of the stages of a plan and its model, as ``hand-over --to vllm`` writes them."""

    to: Literal["vllm"]
    arguments: tuple[str, ...]
    layers: tuple[int, ...]
    architecture: str | None = None  # class of the model

    @property
    def numbers(self) -> list[str]:
        """The numbers of the CUDA devices of stages."""
        visible = next((word for word in self.arguments if word.startswith(f"{VISIBLE}=")), "")
        return visible.partition("=")[2].split(",")


def start_file(data: object, source: str) -> StartFile:
    """Return a file from plain data; PartitionError, which begins with `source`, if it is none."""
    try:
        if not isinstance(data, dict) or "arguments" not in data:
            raise PartitionError("it has no arguments for vLLM")
        found: StartFile = read_as(StartFile, data, "")
        if not found.layers or not all(found.layers):
            raise PartitionError("a stage has no layer")
    except PartitionError as error:
        remedy = "write it by fxpartition hand-over plan.json MODEL --to vllm --out FILE.json"
        raise PartitionError(f"{source}: {error}; {remedy}") from None
    return found


def apply_plan(path: str) -> None:
    """Set the layers of vLLM's stages in this process to those of a file.

    PartitionError if it is no such file, or the environment has other layers. For another model,
    other devices or another number of stages it is raised where vLLM reads its arguments.
    """
    name = f"FXPARTITION_PLAN={shortened(path)}"
    try:
        data = read_json(path)
    except PartitionError as error:
        raise PartitionError(f"FXPARTITION_PLAN: {error}") from None
    start = start_file(data, name)
    layers = ",".join(map(str, start.layers))
    if os.environ.setdefault(PARTITION, layers) != layers:
        raise PartitionError(
            f"{name} has the layers {layers}, and {PARTITION} is {os.environ[PARTITION]!r}; unset "
            "one of them"
        )
    arguments = getattr(sys.modules.get("vllm.engine.arg_utils"), "EngineArgs", None)
    if arguments is not None and not hasattr(arguments.create_model_config, "_checks_plan"):
        arguments.create_model_config = _checked(arguments.create_model_config, start, name)


def _checked(create: Any, start: StartFile, name: str) -> Any:
    @functools.wraps(create)
    def create_model_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        _check_stages(start, name, self.pipeline_parallel_size)
        config = create(self, *args, **kwargs)
        _check_model(start, name, config)
        return config

    create_model_config._checks_plan = True  # type: ignore[attr-defined]
    return create_model_config


def _check_stages(start: StartFile, name: str, size: int) -> None:
    if size != len(start.layers):
        raise PartitionError(
            f"{name} has {counted(len(start.layers), 'stage')}, and --pipeline-parallel-size is "
            f"{size}; write {len(start.layers)}"
        )
    default = ",".join(map(str, range(size)))
    visible = os.environ.get(VISIBLE) or default
    if visible.replace(",", "").isdigit() and visible.split(",")[:size] != start.numbers:
        wanted = ",".join(start.numbers)
        raise PartitionError(
            f"{name} has its stages on the GPUs {wanted}, and vLLM sees {visible}; start it with "
            f"{VISIBLE}={wanted}"
        )


def _check_model(start: StartFile, name: str, config: Any) -> None:
    layers = config.get_total_num_hidden_layers()
    architectures = config.architectures or ["a model"]
    wanted = start.architecture
    if layers != sum(start.layers) or (wanted and wanted not in architectures):
        raise PartitionError(
            f"{name} is for {wanted or 'a model'} of {counted(sum(start.layers), 'layer')}, and "
            f"this is {' or '.join(architectures)} of {layers}; hand over a plan of it"
        )
