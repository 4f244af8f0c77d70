"""The commands ``models``, ``devices`` and ``planners``, which list the known names."""

from __future__ import annotations

from typing import Final

from experiments.commands.options import JsonOption
from experiments.console.output import print_json, print_lines
from fx_bridge.presentation.tables import table_lines

_DTYPES: Final = ("float32", "bfloat16")


def list_models(as_json: JsonOption = False) -> None:
    """List the models that commands accept by name."""
    from experiments.workloads.catalogue import PREFIX, published_names
    from experiments.zoo.models import DEFAULT_MODELS, ZOO

    if as_json:
        print_json(
            [
                {
                    "name": spec.name,
                    "description": spec.description,
                    "compared_by_default": spec.name in DEFAULT_MODELS,
                    "has_weights": spec.has_weights,
                    "extra": spec.extra,
                }
                for spec in ZOO.values()
            ]
        )
        return
    rows = [
        (
            spec.name,
            spec.description,
            "yes" if spec.name in DEFAULT_MODELS else "",
            "" if spec.extra is None else f"fxpartition[{spec.extra}]",
        )
        for spec in ZOO.values()
    ]
    header = ("model", "what it is", "compared", "needs")
    print_lines(table_lines(header, rows, text=header))
    workloads = ", ".join(published_names())
    print_lines([f"{PREFIX}NAME is a published workload: {workloads}."])


def list_devices(as_json: JsonOption = False) -> None:
    """List the device classes whose speeds are known."""
    from fx_bridge.costs.device_presets import DEVICE_SPECS

    if as_json:
        print_json(
            [
                {
                    "class": name,
                    "flops_per_s": {dtype: spec.flops_per_s_of(dtype) for dtype in _DTYPES},
                    "memory_bandwidth_bytes_per_s": spec.memory_bandwidth_bytes_per_s,
                    "launch_overhead_ns": spec.launch_overhead_ns,
                    "kernel_launch_ns": spec.kernel_launch_ns,
                    "compute_efficiency": spec.compute_efficiency,
                    "bandwidth_efficiency": spec.bandwidth_efficiency,
                    "source": spec.source,
                }
                for name, spec in DEVICE_SPECS.items()
            ]
        )
        return
    header = (
        "class",
        *(f"TFLOP/s {dtype}" for dtype in _DTYPES),
        "attained",
        "memory GB/s",
        "attained",
        "launch",
    )
    rows = [
        (
            name,
            *(f"{spec.flops_per_s_of(dtype) / 1e12:g}" for dtype in _DTYPES),
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
        print_json([{name: getattr(spec, name) for name in shown} for spec in PLANNERS.values()])
        return
    rows = [
        (
            spec.name,
            "yes" if spec.proves else "",
            ", ".join(
                filter(
                    None,
                    (
                        "a model" if spec.needs_model else "",
                        f"fxpartition[{spec.extra}]" if spec.extra else "",
                        "--recompute" if spec.recomputes else "",
                    ),
                )
            ),
        )
        for spec in PLANNERS.values()
    ]
    header = ("planner", "proves", "needs")
    below = [[spec.description] for spec in PLANNERS.values()]
    print_lines(table_lines(header, rows, text=header, below=below))
