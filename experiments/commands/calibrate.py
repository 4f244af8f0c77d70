"""The command ``calibrate``: rates of this machine, as a file of devices."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from experiments.commands.options import JsonOption, ThreadsOption, out_option
from experiments.console.output import check_writable, print_json, print_lines, say_written
from solver import Device, PartitionError
from solver.io.files import write_text_atomically
from solver.model.checks import check_choice
from solver.model.text import shown

_DTYPES: Final = ("float32", "bfloat16", "float16", "float64")
_DeviceArgument = Annotated[
    str, typer.Argument(metavar="[DEVICE]", help="The device as torch calls it, such as cuda:0.")
]
_DtypeOption = Annotated[
    str, typer.Option("--dtype", metavar="NAME", help="Of the operators, such as bfloat16.")
]
_OutOption = Annotated[str | None, out_option("FILE", "Save the devices, for --devices.")]


def calibrate(
    device: _DeviceArgument = "cpu",
    dtype: _DtypeOption = "float32",
    threads: ThreadsOption = 1,
    out: _OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure some operators here, and write this machine's speeds as a file of devices.

    For example:

        fxpartition calibrate --out here.toml
        fxpartition plan gpt2 --devices here.toml
    """
    import torch

    from experiments.problems.devices import device_text
    from experiments.processes.environment import available_memory_bytes
    from fx_bridge.costs.calibration import calibrate as calibrated

    check_writable(out)
    check_choice(dtype, _DTYPES, "--dtype")
    try:
        memory_bytes = available_memory_bytes()
        if (place := torch.device(device)).type != "cpu":
            memory_bytes, _ = torch.cuda.mem_get_info(place)
    except (RuntimeError, AssertionError, ValueError):
        raise PartitionError(
            f"device {shown(device)} is none that torch finds here; write cpu, or such as cuda:0"
        ) from None
    torch.set_num_threads(threads)
    spec = calibrated(f"this-{place.type}", device, getattr(torch, dtype))
    name = device if ":" in device else f"{device}:0"
    text = device_text(Device(name, memory_bytes, spec.name), spec)
    if out is not None:
        write_text_atomically(out, text)
        say_written(out)
    if as_json:
        print_json({"device": name, "memory_bytes": memory_bytes, "file": text})
    else:
        print_lines(text.splitlines())
