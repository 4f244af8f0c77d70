"""Layers of devices as ``-dev``, ``-ts`` and ``-ngl`` of llama.cpp, in mode ``layer``.

The embedding is on the host. The output, norm and head, counts as a layer behind the last one, so
that the last device has one more than its layers. ``-ngl`` is the number of these, from the end,
that are not on the host. These are the rules of ``load_tensors`` in ``llama-model.cpp`` since
:data:`SINCE`, and those of the program itself (``benchmarks/llama_cpp.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from fx_bridge.interop.stage_layers import LayerNames, StageLayers, check_stages, is_host
from fx_bridge.interop.words import Words, named_devices, read_arguments, read_number, without_host
from solver import PartitionError

_PROGRAM: Final = "llama.cpp"
SINCE: Final = "2025-12-18"
"""Older builds have the output on the host if not all layers are on devices, and one layer more on
devices."""
_BACKENDS: Final = {
    "cuda": "CUDA", "rpc": "RPC", "rocm": "ROCm", "vulkan": "Vulkan", "sycl": "SYCL"
}  # fmt: skip
"""The first part of a device's name, and that of the program."""
_NO_DEVICE: Final = "none"
_ALL_LAYERS: Final = ("all", "auto", "-1", "-2")
"""All layers on devices, with ``-fit off``; without it, ``auto`` lets the program choose."""
_KNOWN: Final = {
    **{name: name for name in ("-dev", "-sm", "-ts", "-ngl", "-mg", "-fit", "--rpc")},
    "--device": "-dev",
    "--split-mode": "-sm",
    "--tensor-split": "-ts",
    "--gpu-layers": "-ngl",
    "--n-gpu-layers": "-ngl",
    "--main-gpu": "-mg",
    "--fit": "-fit",
}
OVERRIDE, FIRST_EXPERTS, ALL_EXPERTS = "-ot", "--n-cpu-moe", "--cpu-moe"
FIRST_DENSE: Final = "--n-cpu-ffn"
NO_OP_OFFLOAD: Final = "--no-op-offload"
WITHIN_LAYERS: Final = {
    **{name: name for name in (OVERRIDE, FIRST_EXPERTS, ALL_EXPERTS, FIRST_DENSE, NO_OP_OFFLOAD)},
    "--override-tensor": OVERRIDE,
    "-ncmoe": FIRST_EXPERTS,
    "-cmoe": ALL_EXPERTS,
    "-ncffn": FIRST_DENSE,
}
"""Options that divide layers, for :mod:`fx_bridge.interop.llama_cpp_experts`."""


def write_split(names: LayerNames, stages: Sequence[StageLayers]) -> Words:
    """Return stages as arguments: the host with the embedding, then the other devices.

    Raises PartitionError if the embedding is elsewhere, or the host has other than first layers.
    """
    for stage in stages:
        if stage.has_embedding and not is_host(stage.device):
            raise PartitionError(
                f"what is before the layers is on {stage}, and {_PROGRAM} has it on the host; pin "
                "it to cpu:0"
            )
    for stage in stages[1:]:
        if is_host(stage.device):
            raise PartitionError(
                f"{stage} comes after {stages[0]}, and {_PROGRAM}'s host has the first layers and "
                "not the head; pin its other operators elsewhere"
            )
    check_stages(_PROGRAM, stages, bare_ends=True)
    others = stages[1:]
    devices = [program_device(stage.device) for stage in others]
    split = [stage.count + stage.has_head for stage in others]
    shares = ",".join(map(str, split or [1]))
    return [
        *("-dev", ",".join(devices) or _NO_DEVICE, "-sm", "layer", "-ts", shares),
        *("-ngl", str(sum(split)), "-fit", "off"),
    ]


def read_split(text: str, names: LayerNames, devices: Sequence[str]) -> list[StageLayers]:
    """Return the stages of arguments, or of the value of ``-ts`` alone, by llama.cpp's rule.

    Without ``-ngl`` no layer is on the host. With one device ``-ts`` has no effect. Its numbers are
    the shares of :func:`stages_by_shares`.
    """
    found = read_options(text)
    for name in WITHIN_LAYERS:
        if name in found:
            raise PartitionError(
                f"{_PROGRAM}'s {name} is about parts of layers on the host; leave it out, or write "
                "fxpartition serve --host --for llama.cpp --words, which prints its cost"
            )
    return stages_of_options(found, names, devices)


def read_options(text: str) -> dict[str, str]:
    """Return arguments about stages and about parts of layers, by name."""
    return read_arguments(
        *(text, _PROGRAM, "-ts", {**_KNOWN, **WITHIN_LAYERS}),
        flags=(ALL_EXPERTS, NO_OP_OFFLOAD),
        lists=(OVERRIDE,),
        ordered=(FIRST_EXPERTS, ALL_EXPERTS, FIRST_DENSE),
        needs_main=False,
    )


class SplitOptions(NamedTuple):
    """Options about devices and shares, for a model of any number of layers."""

    host: str  # has the embedding
    devices: tuple[str, ...] = ()  # the others, in the order of their shares
    shares: tuple[float, ...] = ()  # empty if all layers are on the host
    offloaded: int | None = None  # layers beside the host, with the output; None for all


def split_options(found: Mapping[str, str], devices: Sequence[str]) -> SplitOptions:
    """Return the options that need no model."""
    for name, allowed in (("-sm", ("layer", "none")), ("-fit", ("off",))):
        if found.get(name, allowed[0]) not in allowed:
            raise PartitionError(
                f"{_PROGRAM}'s {name} is {found[name]!r}, which decides otherwise; write "
                f"{allowed[0]}"
            )
    host = next(filter(is_host, devices), None)
    if host is None:
        raise PartitionError(
            f"{_PROGRAM} has the embedding on the host, and it is not among {', '.join(devices)}; "
            "add such as 64GB@cpu"
        )
    offloaded = None
    if found.get("-ngl", "all") not in _ALL_LAYERS:
        offloaded = read_number(found["-ngl"], f"{_PROGRAM}'s -ngl")
    if offloaded == 0 or found.get("-dev") == _NO_DEVICE:
        return SplitOptions(host, offloaded=0)
    order = without_host(devices, _PROGRAM)
    if "-dev" in found:
        names = [device_of(word.strip()) for word in found["-dev"].split(",")]
        order = named_devices(names, order, f"{_PROGRAM}'s -dev")
    if found.get("-sm") == "none":
        main = read_number(found.get("-mg", "0"), f"{_PROGRAM}'s -mg")
        if main >= len(order):
            raise PartitionError(
                f"{_PROGRAM}'s -mg is {main} and the devices beside the host are "
                f"{', '.join(order)}; write a number below {len(order)}"
            )
        return SplitOptions(host, (order[main],), (1.0,), offloaded)
    if "-ts" not in found and len(order) > 1:
        raise PartitionError(
            f"{_PROGRAM}'s words have no -ts, without which it divides layers by free memory; "
            "write the layers of each device, such as -ts 22,11"
        )
    shares = _shares(found.get("-ts", "1"), len(order))
    return SplitOptions(host, tuple(order), tuple(shares), offloaded)


def stages_of_options(
    found: Mapping[str, str], names: LayerNames, devices: Sequence[str]
) -> list[StageLayers]:
    """Return the stages of options."""
    options, layers = split_options(found, devices), len(names.layers)
    if not options.shares:
        return [StageLayers(options.host, layers, True, True)]
    most = layers + 1
    offloaded = most if options.offloaded is None else min(options.offloaded, most)
    return stages_by_shares(options.shares, layers, options.devices, options.host, offloaded)


def stages_by_shares(
    shares: Sequence[float],
    layers: int,
    devices: Sequence[str],
    host: str | None = None,
    offloaded: int | None = None,
) -> list[StageLayers]:
    """Return the stages of layers that llama.cpp divides by shares, such as free memory.

    It divides the shares by their sum, as float32. The last layers and the output count the same
    and are `offloaded` together: number i of n is on the first device at which the cumulative
    share exceeds i / n.

    `shares` are those of the first of `devices`, at least one above 0. `host` has the embedding and
    the first layers; without it they are on the first device with layers. `offloaded` counts the
    layers that are not on the host, with the output; by default all.
    """
    offloaded = layers + 1 if offloaded is None else offloaded
    ends = np.cumsum(np.asarray(shares, np.float32), dtype=np.float32)
    ends /= ends[-1]
    places = np.arange(offloaded).astype(np.float32) / np.float32(offloaded)
    counts = Counter(np.searchsorted(ends, places, side="right").tolist())
    last = max(counts)
    stages = [
        StageLayers(devices[at], counts[at] - (at == last), has_head=at == last)
        for at in sorted(counts)
    ]
    if host is None:
        return [replace(stages[0], has_embedding=True), *stages[1:]]
    return [StageLayers(host, layers + 1 - offloaded, True), *stages]


def device_of(word: str) -> str:
    """Return the device that the program calls such as ``CUDA0``, or by a number alone."""
    if word.isascii() and word.isdecimal():
        return f"cuda:{word}"
    for backend, name in _BACKENDS.items():
        number = word.removeprefix(name)
        if number != word and number.isascii() and number.isdecimal():
            return f"{backend}:{number}"
    return word


def program_device(device: str) -> str:
    """Return the program's name of a device."""
    backend, _, number = device.partition(":")
    if backend not in _BACKENDS or not (number.isascii() and number.isdecimal()):
        raise PartitionError(
            f"{_PROGRAM} has devices such as {', '.join(f'{name}:0' for name in _BACKENDS)}, and "
            f"the plan has {device!r}; plan for devices with such names"
        )
    return _BACKENDS[backend] + number


def _shares(text: str, devices: int) -> list[float]:
    try:
        shares = np.array([float(word) for word in text.replace("/", ",").split(",")], np.float32)
    except ValueError:
        raise PartitionError(
            f"{_PROGRAM}'s -ts is {text!r}; write numbers with commas between them, such as 22,11"
        ) from None
    if len(shares) > devices:
        raise PartitionError(
            f"{_PROGRAM}'s -ts has {len(shares)} numbers and there are {devices} devices beside "
            "the host; give as many"
        )
    if not np.isfinite(shares).all() or (shares < 0).any() or not shares.any():
        raise PartitionError(f"{_PROGRAM}'s -ts is {text!r}; write shares of which one is above 0")
    return [float(share) for share in shares]
