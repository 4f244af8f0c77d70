"""Plans as the settings of serving and training engines, by layers of stages, and the reverse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.interop.layer_counts import (
    partition_by_settings,
    partition_by_variable,
    read_offset,
    read_ranges,
    write_offset,
    write_ranges,
)
from fx_bridge.interop.layer_kinds import check_attention, kinds_of_layers
from fx_bridge.interop.layered_model import LayeredModel
from fx_bridge.interop.llama_cpp import read_split, write_split
from fx_bridge.interop.megatron_layout import read_layout, write_layout, write_lists
from fx_bridge.interop.module_parts import parts_of_modules
from fx_bridge.interop.nearest import suggesting_nearest
from fx_bridge.interop.stage_layers import StageLayers, is_host
from fx_bridge.interop.transformers_ranks import read_ranks, write_ranks
from fx_bridge.interop.words import Read, Words, Write, without_host
from fx_bridge.interop.write_plans import check_devices_alone
from fx_bridge.options import Placement
from fx_bridge.split.checks import check_total
from solver import Device, PartitionError, PartitionPlan, PartitionProblem
from solver.model.checks import did_you_mean
from solver.model.device_text import as_devices

_HOST: Final = "cpu:0"


@dataclass(frozen=True, slots=True)
class Engine:
    """A program that takes plans as layers of stages."""

    program: str
    write: Write
    read: Read
    has_host: bool = False  # the embedding runs on the host
    needs_gpus: bool = False  # no stage can run on the host
    bare_ends: bool = False  # embedding and head may be on stages without a layer
    needs_attention: bool = False  # on each stage of a model that has other layers too


def _counted(program: str, variable: str, size: str, *, needs_attention: bool = False) -> Engine:
    words = partition_by_variable(program, variable, size)
    return Engine(program, *words, needs_gpus=True, needs_attention=needs_attention)


def _named(program: str, *, children_alone: bool) -> Engine:
    words = parts_of_modules(program, children_alone=children_alone)
    return Engine(program, *words, bare_ends=True)


ENGINES: Final[Mapping[str, Engine]] = {
    "vllm": _counted(
        "vLLM", "VLLM_PP_LAYER_PARTITION", "--pipeline-parallel-size", needs_attention=True
    ),
    "sglang": _counted("SGLang", "SGLANG_PP_LAYER_PARTITION", "--pp-size"),
    "tensorrt-llm": Engine(
        "TensorRT-LLM",
        *partition_by_settings("TensorRT-LLM", "pipeline_parallel_size", "pp_partition"),
        needs_gpus=True,
    ),
    "transformers": Engine("transformers", write_ranks, read_ranks),
    "llama.cpp": Engine("llama.cpp", write_split, read_split, has_host=True, bare_ends=True),
    "torchtitan": _named("torchtitan", children_alone=True),
    "nemo": _named("NeMo", children_alone=False),
    "mindformers": Engine("MindFormers", write_offset, read_offset),
    "mindformers-pynative": Engine("MindFormers", write_ranges, read_ranges),
    "megatron": Engine("Megatron", write_layout, read_layout, bare_ends=True),
    "megatron-bridge": Engine("Megatron", write_lists, read_layout, bare_ends=True),
}
"""Engines by the names of the options."""


def engine_words(
    captured: CapturedGraph,
    plan: PartitionPlan,
    engine: str,
    *,
    problem: PartitionProblem | None = None,
) -> Words:
    """Return a plan in the words of an engine: command-line arguments or settings.

    Parameters
    ----------
    plan : PartitionPlan
        Its stages must be runs of whole layers, all of one list, with the embedding and the head
        at the engine's places. No operator runs again; for the recomputation of Megatron see
        :func:`~fx_bridge.interop.megatron.megatron_arguments`.
    engine : str
        One of ``ENGINES``.
    problem : PartitionProblem, optional
        The problem of the plan. With it, an error gives the cost of the nearest plan.

    Returns
    -------
    list of str or dict of str to object
        Arguments and environment variables, or the contents of a file of settings.

    Raises
    ------
    PartitionError
        In one line: the part of the plan that the engine cannot express, and the nearest plan that
        it can, if there is one.

    Examples
    --------
    >>> import torch
    >>> from fx_bridge.capture.graph import capture
    >>> layers = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()) for _ in range(3)]
    >>> captured = capture(torch.nn.Sequential(*layers), (torch.ones(1, 4),))
    >>> placement_for("vllm", captured)
    Placement(keep_whole=('0', '1', '2'))
    >>> plan = plan_from_words(captured, [Device("cuda:0"), Device("cuda:1")], "2,1", "vllm")
    >>> plan.operators_of("cuda:1")
    ('linear_2', 'tanh_2')
    >>> print(*engine_words(captured, plan, "sglang"))
    CUDA_VISIBLE_DEVICES=0,1 SGLANG_PP_LAYER_PARTITION=2,1 --pp-size 2
    """
    found = _engine(engine)
    model = LayeredModel(captured, found.program)
    check_total(captured, plan)
    check_devices_alone(plan)
    host = next(filter(is_host, plan.device_order), None)
    if found.needs_gpus and host is not None:
        raise PartitionError(
            f"{found.program} runs on GPUs, and the plan has {host!r}; plan without it"
        )
    kinds = kinds_of_layers(captured, len(model.layers)) if found.needs_attention else ()

    def write(stages: Sequence[StageLayers]) -> Words:
        check_attention(found.program, kinds, model.names, stages)
        return found.write(model.names, stages)

    with suggesting_nearest(model, plan, write, problem, host=_HOST if found.has_host else None):
        return write(model.stages_of(plan)[0])


def plan_from_words(
    captured: CapturedGraph, devices: Sequence[Device] | str, words: str, engine: str
) -> PartitionPlan:
    """Return the plan that the words of an engine describe; see the example of `engine_words`.

    Parameters
    ----------
    devices : sequence of Device, or str
        Stage n runs on device n if the words name no devices.
    words : str
        The result of :func:`engine_words`, on a command line or as JSON, or only its part with the
        layers, such as ``"22,10"`` or ``"Et*3|t*3L"``.
    engine : str
        One of ``ENGINES``.

    Raises
    ------
    PartitionError
        In one line: the part of the words that is no plan of this model on these devices.

    Notes
    -----
    Weights that the embedding and the head share are on both of their devices. Operators outside
    of layers run with the embedding, the head, or the layer before them.
    """
    found = _engine(engine)
    model = LayeredModel(captured, found.program)
    names = [device.name for device in as_devices(devices)]
    if found.needs_gpus:
        names = without_host(names, found.program)
    return model.plan_of(found.read(words, model.names, names))


def placement_for(
    engine: str, captured: CapturedGraph, beside: Placement | None = None
) -> Placement:
    """Return the constraints that restrict plans of a model to those an engine can express.

    They keep every layer whole, as well as the modules before the first and after the last layer,
    with these layers if the engine has no stage without one. llama.cpp pins the embedding to
    ``cpu:0``.

    Parameters
    ----------
    engine : str
        One of ``ENGINES``.
    beside : Placement, optional
        Further constraints.
    """
    found, beside = _engine(engine), beside or Placement()
    names = LayeredModel(captured, found.program).names
    first, last = names.layers[:1], names.layers[-1:]
    ends = [(*names.embedding, *first), (*last, *names.head)]
    if found.bare_ends:
        ends = [names.embedding, names.head]
    pins = dict.fromkeys(names.embedding, _HOST) if found.has_host else {}
    together = ["+".join(end) for end in ends if len(end) > 1]
    return Placement(
        {**pins, **beside.pins}, beside.cut_after, (*names.layers, *together, *beside.keep_whole)
    )


def _engine(name: str) -> Engine:
    if name not in ENGINES:
        hint = did_you_mean(name, ENGINES, f"write one of {', '.join(ENGINES)}")
        raise PartitionError(f"engine {name!r} is unknown; {hint}")
    return ENGINES[name]
