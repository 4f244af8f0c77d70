"""Layers of stages as ``--pipeline-model-parallel-layout`` of Megatron-LM, its forks and Bridge.

``E`` is the embedding, ``t`` a layer, ``L`` the head, ``|`` ends a stage; ``t*3`` and ``(tt|)*3``
repeat, and commas are ignored. With more stages than devices, the stages run through the devices
chunk by chunk. ``m`` is a layer of multi-token prediction, which no captured model has. Compared
with ``PipelineParallelLayerLayout`` by ``benchmarks/engines.py``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from fx_bridge.interop.literals import read_literal
from fx_bridge.interop.stage_layers import LayerNames, StageLayers, check_stages
from fx_bridge.interop.words import (
    VISIBLE,
    check_sum,
    order_setting,
    placed_stages,
    rank_devices,
    read_arguments,
    read_number,
    read_settings,
)
from solver import PartitionError
from solver.model.text import shown

_PROGRAM: Final = "Megatron"
_SIZE: Final = "--pipeline-model-parallel-size"
_LAYOUT: Final = "--pipeline-model-parallel-layout"
_REPEATS: Final = (r"\(([^()]+)\)\*(\d+)", r"(.)\*(\d+)")
"""Groups first, as in Megatron; groups are not nested."""
_MOST_LETTERS: Final = 100_000
_LETTERS: Final = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
"""Letters of the names of layers in lists, such as those of Megatron-Bridge."""


def write_layout(names: LayerNames, stages: Sequence[StageLayers]) -> list[str]:
    """Return stages as arguments: their number, the layers of each, and the order of devices."""
    check_stages(_PROGRAM, stages, has_chunks=True, bare_ends=True)
    parts = []
    for stage in stages:
        layers = f"t*{stage.count}" if stage.count > 1 else "t" * stage.count
        parts.append("E" * stage.has_embedding + layers + "L" * stage.has_head)
    size = len({stage.device for stage in stages})
    order = [f"{name}={value}" for name, value in order_setting(stages).items()]
    return [*order, _SIZE, str(size), _LAYOUT, "|".join(parts)]


def read_layout(text: str, names: LayerNames, devices: Sequence[str]) -> list[StageLayers]:
    """Return the stages of arguments, settings, or a layout alone, on the devices in order.

    PartitionError if a stage is empty, or the model has other layers.
    """
    layout, size = _setting(_LAYOUT), _setting(_SIZE)
    if text.lstrip().startswith("{"):
        settings = read_settings(text, _PROGRAM, layout, [size, VISIBLE])
        value = settings[layout]
        letters = _as_letters(value) if isinstance(value, str) else _letters_of_stages(value)
        return _placed(letters, settings.get(size), settings.get(VISIBLE), names, devices)
    known = {VISIBLE: VISIBLE, _SIZE: _SIZE, _LAYOUT: _LAYOUT, size: _SIZE, layout: _LAYOUT}
    found = {_LAYOUT: text}
    if not text.lstrip().startswith("- "):  # a list of YAML
        found = read_arguments(text, _PROGRAM, _LAYOUT, known)
    letters = _as_letters(found[_LAYOUT])
    return _placed(letters, found.get(_SIZE), found.get(VISIBLE), names, devices)


def write_lists(names: LayerNames, stages: Sequence[StageLayers]) -> dict[str, object]:
    """Return stages as settings of Megatron-Bridge: the names of the layers of each."""
    check_stages(_PROGRAM, stages, has_chunks=True, bare_ends=True)
    layout = [
        ["embedding"] * stage.has_embedding + ["decoder"] * stage.count + ["loss"] * stage.has_head
        for stage in stages
    ]
    size = len({stage.device for stage in stages})
    return {_setting(_SIZE): size, _setting(_LAYOUT): layout, **order_setting(stages)}


def _setting(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _placed(
    layout: str, size: object, visible: object, names: LayerNames, devices: Sequence[str]
) -> list[StageLayers]:
    """Return the stages of a layout in letters on `size` devices, all of them by default."""
    devices = rank_devices(visible, devices, _PROGRAM)
    parts = _unrolled(layout).split("|")
    ranks = min(len(parts), len(devices))
    if size is not None:
        ranks = read_number(size, f"{_PROGRAM}'s {_SIZE}", 1)
    stages = [(part.count("t"), "E" in part, "L" in part) for part in parts]
    placed = placed_stages(stages, ranks, devices, _PROGRAM)
    check_sum([stage.count for stage in placed], len(names.layers), _PROGRAM)
    return placed


def _as_letters(layout: str) -> str:
    """Return a layout, which may be a list of stages with names of layers, as letters."""
    layout = layout.strip("\"'\n")
    if "[" not in layout and "embedding" not in layout.lower():
        return "".join(layout.split())
    return _letters_of_stages(read_literal(layout, f"{_PROGRAM}'s layout"))


def _letters_of_stages(stages: object) -> str:
    if not isinstance(stages, list) or not all(isinstance(stage, list) for stage in stages):
        raise PartitionError(
            f"{_PROGRAM}'s layout {shown(stages)} is no list of stages; write such as "
            '[["embedding", "decoder"], ["decoder", "loss"]]'
        )
    return "|".join("".join(map(_letters_of, stage)) for stage in stages)


def _letters_of(layer: object) -> str:
    if isinstance(layer, list):
        return "".join(map(_letters_of, layer))
    name, star, times = str(layer).strip().lower().partition("*")
    name = name.strip().rpartition(".")[2]
    if name not in _LETTERS:
        raise PartitionError(
            f"{_PROGRAM}'s layout has {str(layer)[:100]!r}; write {', '.join(_LETTERS)}"
        )
    return _LETTERS[name] + (f"*{times.strip()}" if star else "")


def _unrolled(layout: str) -> str:
    """Return a layout without repeats; PartitionError unless it begins with E and ends with L."""
    letters = layout.replace(",", "")
    for pattern in _REPEATS:
        longest = sum(
            len(group) * read_number(number, f"a repeat in {_PROGRAM}'s layout {layout[:100]!r}")
            for group, number in re.findall(pattern, letters)
        )
        if longest > _MOST_LETTERS:
            raise PartitionError(
                f"{_PROGRAM}'s layout {layout[:100]!r} has {longest:,} letters; write at most "
                f"{_MOST_LETTERS:,}"
            )
        letters = re.sub(pattern, lambda match: match[1] * int(match[2]), letters)
    if "m" in letters:
        raise PartitionError(
            f"{_PROGRAM}'s layout {layout[:100]!r} has 'm', a layer of multi-token prediction, and "
            "the model has none; leave it out"
        )
    if wrong := sorted(set(letters) - set("EtL|")):
        raise PartitionError(
            f"{_PROGRAM}'s layout {layout[:100]!r} has {wrong[0]!r}; write E, t, L, | and repeats "
            "such as t*3 and (tt|)*3"
        )
    if not re.fullmatch(r"E[t|]*L", letters):
        raise PartitionError(
            f"{_PROGRAM}'s layout {layout[:100]!r} does not begin with its only E and end with its "
            "only L; write such as 'Ett|ttL'"
        )
    if "||" in letters:
        raise PartitionError(
            f"{_PROGRAM}'s layout {layout[:100]!r} has a stage without a layer; write one into it, "
            "or fewer stages"
        )
    return letters
