"""The commands ``models`` and ``devices``, which list what can be named."""

from __future__ import annotations

from experiments.commands import make_console


def list_models() -> None:
    """List the models that can be named."""
    from rich.table import Table
    from rich.text import Text

    from experiments.models import DEFAULT_MODELS, ZOO

    table = Table()
    for name in ("model", "what it is", "compared by default", "needs"):
        table.add_column(Text(name))
    for spec in ZOO.values():
        default = "yes" if spec.name in DEFAULT_MODELS else ""
        needs = "" if spec.extra is None else f"fxpartition[{spec.extra}]"
        table.add_row(*(Text(cell) for cell in (spec.name, spec.description, default, needs)))
    make_console().print(table)


def list_devices() -> None:
    """List the device classes whose speeds are known."""
    from rich.table import Table
    from rich.text import Text

    from fx_bridge.specs import DEVICE_SPECS

    table = Table()
    header = ("class", "TFLOP/s float32", "TFLOP/s bfloat16", "memory GB/s", "launch overhead")
    for name in header:
        table.add_column(Text(name), justify="left" if name == "class" else "right")
    for name, spec in DEVICE_SPECS.items():
        cells = (
            name,
            f"{spec.flops_per_s_of('float32') / 1e12:g}",
            f"{spec.flops_per_s_of('bfloat16') / 1e12:g}",
            f"{spec.memory_bandwidth_bytes_per_s / 1e9:g}",
            f"{spec.launch_overhead_ns} ns",
        )
        table.add_row(*(Text(cell) for cell in cells))
    console = make_console()
    console.print(table)
    console.print("Use one as 2x80GiB@CLASS; a device file may define others.", markup=False)
