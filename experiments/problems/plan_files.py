"""Foreign plans: files in four formats, recognised by content, and arguments of engines.

An example of an argument is vLLM's ``16,32`` (:mod:`fx_bridge.interop.engines`).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from solver import Device, PartitionError, PartitionPlan
from solver.io.files import read_json, read_text
from solver.io.json_fields import parse_json
from solver.io.json_files import plan_from_json
from solver.model.quantities import counted
from solver.model.text import shortened

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph

FileFormat = Literal["plan", "device-map", "split-spec", "tags"]
FORMATS: Final[tuple[FileFormat, ...]] = get_args(FileFormat)
EngineName = Literal[
    "vllm",
    "sglang",
    "tensorrt-llm",
    "transformers",
    "llama.cpp",
    "torchtitan",
    "nemo",
    "mindformers",
    "mindformers-pynative",
    "megatron",
    "megatron-bridge",
]
"""The names in ``fx_bridge``, whose import loads torch."""
PlanFormat = Literal[FileFormat, EngineName]
_POINTS: Final = ("beginning", "end")
_EXAMPLES: Final = (
    'write a plan of fxpartition plan --out, a device map {"module": 0}, a split specification '
    '{"module": "beginning"} or tags {"operator": "tag"}'
)


@dataclass(frozen=True, slots=True)
class ForeignPlan:
    """A plan of the current problem read from a foreign format, with assumptions made as notes."""

    format: PlanFormat
    plan: PartitionPlan
    notes: tuple[str, ...] = ()


def read_foreign_plan(
    path: str,
    devices: Sequence[Device],
    captured: CapturedGraph | None,
    form: PlanFormat | None = None,
) -> ForeignPlan:
    """Read a plan from a file, or for an engine from its argument, or a file with it.

    A problem without a model, `captured` None, takes this project's plans only.
    """
    if form is not None and form in get_args(EngineName):
        return _from_words(captured, devices, path, form)
    data = read_json(Path(path))
    if form is None:
        form = _recognised(path, data, captured)
    if form == "plan":
        try:
            return ForeignPlan(form, plan_from_json(data))
        except PartitionError as error:
            raise PartitionError(f"{shortened(path)}: {error}") from None
    if captured is None:
        raise PartitionError(
            f"{shortened(path)} is read as {form}, which names parts of a model; give the model "
            "in the place of a saved problem"
        )
    if not isinstance(data, dict):
        raise PartitionError(f"{shortened(path)} is no {form}: it holds no object; {_EXAMPLES}")
    try:
        return _READERS[form](captured, devices, data)
    except PartitionError as error:
        raise PartitionError(f"{shortened(path)}: {error}") from None


def _recognised(path: str, data: object, captured: CapturedGraph | None) -> PlanFormat:
    if not isinstance(data, dict) or not data:
        raise PartitionError(f"{shortened(path)} holds no plan; {_EXAMPLES}")
    if "schema" in data or captured is None:
        return "plan"
    points = data["split_spec"] if isinstance(data.get("split_spec"), dict) else data
    if all(isinstance(value, str) and value.lower() in _POINTS for value in points.values()):
        return "split-spec"
    if any(isinstance(value, int) for value in data.values()):
        return "device-map"

    from fx_bridge.interop.accelerate_dispatch import tensor_names

    nodes = {node.name for node in captured.graph.nodes}
    modules = {"", *captured.modules.operators, *tensor_names(captured)}
    named = [sum(name in known for name in data) for known in (nodes, modules)]
    if named[0] == named[1]:
        kinds = "operators and of modules" if named[0] else "neither operators nor modules"
        raise PartitionError(
            f"{shortened(path)} has names of {kinds} of the model; say what it is: --format "
            f"{', '.join(FORMATS)}"
        )
    return "tags" if named[0] > named[1] else "device-map"


def _from_words(
    captured: CapturedGraph | None, devices: Sequence[Device], words: str, engine: PlanFormat
) -> ForeignPlan:
    if captured is None:
        raise PartitionError(
            f"words for {engine} count the layers of a model; give the model in the place of a "
            "saved problem"
        )
    from fx_bridge.interop.engines import plan_from_words

    if os.path.isfile(words):  # noqa: PTH113 - false for any name that cannot be
        words = read_text(words, "words")
        if engine == "vllm" and words.lstrip().startswith("{"):
            from fx_bridge.interop.vllm_start import start_file

            words = shlex.join(start_file(parse_json(words, "words"), "words").arguments)
    plan = plan_from_words(captured, devices, words, engine)
    # Arguments for llama.cpp name all devices.
    has_order = "_VISIBLE_DEVICES" in words or engine == "llama.cpp"
    return ForeignPlan(engine, plan, () if has_order else _order_note(devices, plan))


def _order_note(devices: Sequence[Device], plan: PartitionPlan) -> tuple[str, ...]:
    """Return a note on the assumed devices of stages, if devices differ."""
    if len({replace(device, name="any") for device in devices}) == 1:
        return ()
    return (f"no devices are named, so that stages run on {', '.join(plan.device_order)}",)


def _from_device_map(
    captured: CapturedGraph, devices: Sequence[Device], data: Mapping[str, Any]
) -> ForeignPlan:
    from fx_bridge.interop.read_plans import device_map_run, plan_in_chunks

    run = device_map_run(captured, devices, data)
    notes: list[str] = []
    if run.mixed:
        first = run.mixed[0]
        reads = " and ".join(f"{name!r} on {device}" for name, device in first.reads)
        more = f" (and {len(run.mixed) - 1} more)" if len(run.mixed) > 1 else ""
        notes.append(
            f"operator {first.operator!r} would read {reads}{more}: accelerate does not move "
            "these, so that the model must, or fails"
        )
    return ForeignPlan("device-map", plan_in_chunks(captured, run.assignment), tuple(notes))


def _from_split_spec(
    captured: CapturedGraph, devices: Sequence[Device], data: Mapping[str, Any]
) -> ForeignPlan:
    from fx_bridge.interop.read_plans import plan_from_split_spec

    plan = plan_from_split_spec(captured, devices, data)
    notes = () if "devices" in data else _order_note(devices, plan)
    return ForeignPlan("split-spec", plan, notes)


def _from_tags(
    captured: CapturedGraph, devices: Sequence[Device], data: Mapping[str, Any]
) -> ForeignPlan:
    from fx_bridge.split.tags import plan_from_tags

    plan = plan_from_tags(captured, data)
    names = [device.name for device in devices]
    if set(plan.device_order) <= set(names):
        return ForeignPlan("tags", plan)
    if len(plan.device_order) > len(names):
        raise PartitionError(
            f"there are {len(plan.device_order)} tags but "
            f"{counted(len(names), 'device')}; give as many"
        )
    device_of = dict(zip(plan.device_order, names, strict=False))
    assignment = {name: device_of[tag] for name, tag in plan.assignment.items()}
    named = ", ".join(f"{tag!r} is {device}" for tag, device in device_of.items())
    return ForeignPlan(
        "tags",
        PartitionPlan(assignment, tuple(device_of.values())),
        (f"tags take the devices in the order in which data flows: {named}",),
    )


_READERS: Final = {
    "device-map": _from_device_map,
    "split-spec": _from_split_spec,
    "tags": _from_tags,
}
