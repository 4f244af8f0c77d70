"""The commands ``models``, ``devices`` and ``planners``, which list the known names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from experiments.commands.options import JsonOption
from experiments.console.output import print_json, print_lines
from fx_bridge.presentation.tables import table_lines

if TYPE_CHECKING:
    from experiments.planners.task import PlannerSpec
    from experiments.zoo.building import ModelSpec

_DTYPES: Final = ("float32", "bfloat16")
_SPEEDS: Final = (
    *("memory_bandwidth_bytes_per_s", "launch_overhead_ns", "kernel_launch_ns"),
    *("compute_efficiency", "bandwidth_efficiency", "source"),
)


def list_models(as_json: JsonOption = False) -> None:
    """List the models that commands accept by name."""
    from experiments.workloads.catalogue import PREFIX, published_names
    from experiments.zoo.models import DEFAULT_MODELS, ZOO

    if as_json:
        print_json(
            [
                {
                    **_fields(spec, "name", "description"),
                    "compared_by_default": name in DEFAULT_MODELS,
                    **_fields(spec, "has_weights", "extra"),
                }
                for name, spec in ZOO.items()
            ]
        )
        return
    rows = [
        (name, spec.description, "yes" * (name in DEFAULT_MODELS), _extra(spec))
        for name, spec in ZOO.items()
    ]
    header = ("model", "what it is", "compared", "needs")
    print_lines(table_lines(header, rows, text=header))
    workloads = ", ".join(published_names())
    print_lines([f"{PREFIX}NAME is a published workload: {workloads}."])


def list_devices(as_json: JsonOption = False) -> None:
    """List the device classes whose speeds are known."""
    from fx_bridge.costs.device_presets import DEVICE_SPECS

    rates = {
        name: {dtype: spec.flops_per_s_of(dtype) for dtype in _DTYPES}
        for name, spec in DEVICE_SPECS.items()
    }
    if as_json:
        print_json(
            [
                {"class": name, "flops_per_s": rates[name], **_fields(spec, *_SPEEDS)}
                for name, spec in DEVICE_SPECS.items()
            ]
        )
        return
    flops = (f"TFLOP/s {dtype}" for dtype in _DTYPES)
    header = ("class", *flops, "attained", "memory GB/s", "attained", "launch")
    rows = [
        (
            name,
            *(f"{rate / 1e12:g}" for rate in rates[name].values()),
            f"{spec.compute_efficiency:.0%}",
            f"{spec.memory_bandwidth_bytes_per_s / 1e9:g}",
            f"{spec.bandwidth_efficiency:.0%}",
            f"{spec.launch_overhead_ns} ns",
        )
        for name, spec in DEVICE_SPECS.items()
    ]
    print_lines(table_lines(header, rows, below=[[spec.source] for spec in DEVICE_SPECS.values()]))
    print_lines(["Use one as 2x80GiB@CLASS; a device file may define others."])


def list_planners(as_json: JsonOption = False) -> None:
    """List the planners that can be compared: ours, and those of other programs."""
    from experiments.planners.registry import PLANNERS

    if as_json:
        flags = ("needs_model", "extra", "seeded", "proves", "recomputes")
        shown = ("name", "description", "source", *flags)
        print_json([_fields(spec, *shown) for spec in PLANNERS.values()])
        return
    rows = []
    for spec in PLANNERS.values():
        needs = ("a model" * spec.needs_model, _extra(spec), "--recompute" * spec.recomputes)
        rows.append((spec.name, "yes" * spec.proves, ", ".join(filter(None, needs))))
    header = ("planner", "proves", "needs")
    below = [[spec.description] for spec in PLANNERS.values()]
    print_lines(table_lines(header, rows, text=header, below=below))


def _fields(spec: object, *names: str) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in names}


def _extra(spec: ModelSpec | PlannerSpec) -> str:
    return "" if spec.extra is None else f"fxpartition[{spec.extra}]"
