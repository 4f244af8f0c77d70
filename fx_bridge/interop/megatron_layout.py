"""The layers of stages as ``--pipeline-model-parallel-layout`` of Megatron-LM and its kin.

``E`` is the embedding, ``t`` a layer, ``L`` the head, ``|`` ends a stage; ``t*3`` and ``(tt|)*3``
repeat, and commas mean nothing. Stages beyond the number of devices are further chunks, every
chunk in turn. ``m`` is a layer of multi-token prediction, which no captured model has. Written
after ``pipeline_parallel_layer_layout.py`` of 2025. It was not run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from fx_bridge.interop.stage_layers import LayerNames, StageLayers, check_stages
from fx_bridge.interop.words import (
    VISIBLE,
    check_devices,
    check_sum,
    order_setting,
    rank_devices,
    read_arguments,
    read_number,
)
from solver import PartitionError
from solver.model.quantities import counted

_PROGRAM: Final = "Megatron"
_SIZE: Final = "--pipeline-model-parallel-size"
_LAYOUT: Final = "--pipeline-model-parallel-layout"
_REPEATS: Final = (r"\(([^()]+)\)\*(\d+)", r"(.)\*(\d+)")
"""Groups first, as Megatron does; a group has none within it."""
_MOST_LETTERS: Final = 100_000


def write_layout(names: LayerNames, stages: Sequence[StageLayers]) -> list[str]:
    """Return stages as arguments: their number, what is on each, and the order of devices."""
    check_stages(_PROGRAM, stages, has_chunks=True, bare_ends=True)
    parts = []
    for stage in stages:
        layers = f"t*{stage.count}" if stage.count > 1 else "t" * stage.count
        parts.append("E" * stage.has_embedding + layers + "L" * stage.has_head)
    size = len({stage.device for stage in stages})
    order = [f"{name}={value}" for name, value in order_setting(stages).items()]
    return [*order, _SIZE, str(size), _LAYOUT, "|".join(parts)]


def read_layout(text: str, names: LayerNames, devices: Sequence[str]) -> list[StageLayers]:
    """Return the stages that a layout says, on the devices in order.

    Raises
    ------
    PartitionError
        If it is no layout, a stage is empty, or it has not the layers of the model.
    """
    known = {name: name for name in (VISIBLE, _SIZE, _LAYOUT)}
    found = read_arguments(text, _PROGRAM, _LAYOUT, known)
    devices = rank_devices(found.get(VISIBLE), devices, _PROGRAM)
    parts = _unrolled(found[_LAYOUT]).split("|")
    size = len(parts)
    if _SIZE in found:
        size = read_number(found[_SIZE], f"{_PROGRAM}'s {_SIZE}", 1)
    elif size > len(devices):
        size = len(devices)
    if len(parts) % size:
        raise PartitionError(
            f"{_PROGRAM}'s layout has {counted(len(parts), 'stage')} on "
            f"{counted(size, 'device')}; write as many stages for each"
        )
    check_devices(size, devices, _PROGRAM)
    check_sum([part.count("t") for part in parts], len(names.layers), _PROGRAM)
    return [
        StageLayers(devices[at % size], part.count("t"), "E" in part, "L" in part, at // size)
        for at, part in enumerate(parts)
    ]


def _unrolled(layout: str) -> str:
    """Return a layout without repeats; PartitionError unless it begins with E and ends with L."""
    letters = layout.replace(",", "")
    for pattern in _REPEATS:
        longest = sum(
            len(group) * read_number(number, f"a repeat in {_PROGRAM}'s layout {layout!r}")
            for group, number in re.findall(pattern, letters)
        )
        if longest > _MOST_LETTERS:
            raise PartitionError(
                f"{_PROGRAM}'s layout {layout!r} has {longest:,} letters; write at most "
                f"{_MOST_LETTERS:,}"
            )
        letters = re.sub(pattern, lambda match: match[1] * int(match[2]), letters)
    if "m" in letters:
        raise PartitionError(
            f"{_PROGRAM}'s layout {layout!r} has 'm', a layer of multi-token prediction, and the "
            "model has none; leave it out"
        )
    if wrong := sorted(set(letters) - set("EtL|")):
        raise PartitionError(
            f"{_PROGRAM}'s layout {layout!r} has {wrong[0]!r}; write E, t, L, | and repeats such "
            "as t*3 and (tt|)*3"
        )
    if not re.fullmatch(r"E[t|]*L", letters):
        raise PartitionError(
            f"{_PROGRAM}'s layout {layout!r} does not begin with its only E and end with its only "
            "L; write such as 'Ett|ttL'"
        )
    if "||" in letters:
        raise PartitionError(
            f"{_PROGRAM}'s layout {layout!r} has a stage without a layer; write one into it, or "
            "fewer stages"
        )
    return letters
