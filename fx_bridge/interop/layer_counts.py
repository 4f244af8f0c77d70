"""Engines that take the layers of every stage as numbers or ranges.

The first stage has the embedding, the last the norm and the head; both have weights that the two
share. Compared with vLLM and SGLang (``distributed/utils.py``), MindFormers (``LayerSetting``,
``PpLayerSetting``) and transformers (``PipelineStage``) by ``benchmarks/engines.py``; TensorRT-LLM
is by its source of 2025, ``llmapi/llm_args.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from fx_bridge.interop.stage_layers import LayerNames, StageLayers, check_stages
from fx_bridge.interop.words import (
    VISIBLE,
    Read,
    Words,
    Write,
    check_size,
    cuda_numbers,
    order_setting,
    rank_devices,
    read_arguments,
    read_number,
    read_settings,
    stages_of_counts,
)
from solver import PartitionError
from solver.model.text import shown

_RANGES: Final = "pipeline_parallel_layers_per_stage"


def partition_by_variable(program: str, variable: str, size: str) -> tuple[Write, Read]:
    """Return functions that write and read layers as an environment variable, such as ``22,10``.

    `size` is the argument for the number of stages, whose devices are in the order of
    ``CUDA_VISIBLE_DEVICES``.
    """

    def write(names: LayerNames, stages: Sequence[StageLayers]) -> Words:
        numbers = cuda_numbers([stage.device for stage in stages], program)
        check_stages(program, stages)
        counts = ",".join(str(stage.count) for stage in stages)
        visible = f"{VISIBLE}={','.join(numbers)}"
        return [visible, f"{variable}={counts}", size, str(len(stages))]

    def read(text: str, names: LayerNames, devices: Sequence[str]) -> list[StageLayers]:
        known = {name: name for name in (VISIBLE, variable, size)}
        known |= dict.fromkeys(("--pipeline-parallel-size", "--pp-size", "-pp"), size)
        found = read_arguments(text, program, variable, known)
        numbers = found[variable].strip("[](), \"'").split(",")
        counts = [read_number(number, f"{program}'s {variable}", 1) for number in numbers]
        check_size(found.get(size), len(counts), program, size)
        order = rank_devices(found.get(VISIBLE), devices, program)
        return stages_of_counts(counts, len(names.layers), order, program)

    return write, read


def partition_by_settings(program: str, size: str, layers: str) -> tuple[Write, Read]:
    """Return functions that write and read a setting with the layers of each rank.

    `size` and `layers` are the settings for the number of stages and for their layers.
    """

    def write(names: LayerNames, stages: Sequence[StageLayers]) -> Words:
        check_stages(program, stages)
        counts = [stage.count for stage in stages]
        return {size: len(counts), layers: counts, **order_setting(stages)}

    def read(text: str, names: LayerNames, devices: Sequence[str]) -> list[StageLayers]:
        found = read_settings(text, program, layers, [size, VISIBLE])
        counts = _numbers(found[layers], f"{program}'s {layers}", 1)
        check_size(found.get(size), len(counts), program, size)
        order = rank_devices(found.get(VISIBLE), devices, program)
        return stages_of_counts(counts, len(names.layers), order, program)

    return write, read


def write_offset(names: LayerNames, stages: Sequence[StageLayers]) -> Words:
    """Return stages as settings of MindFormers: the layers of each beyond layers // stages.

    With several stages a device, `offset` is one list for each chunk.
    """
    check_stages("MindFormers", stages, has_chunks=True)
    size = len({stage.device for stage in stages})
    base = sum(stage.count for stage in stages) // len(stages)
    offset = [stage.count - base for stage in stages]
    settings: dict[str, object] = {"pipeline_stage": size, "offset": offset}
    if size < len(stages):
        chunks = [offset[at : at + size] for at in range(0, len(offset), size)]
        settings |= {"pp_interleave_num": len(chunks), "offset": chunks}
    return settings | order_setting(stages)


def read_offset(text: str, names: LayerNames, devices: Sequence[str]) -> list[StageLayers]:
    """Return the stages of ``offset`` of MindFormers, on the devices in order."""
    program, size, interleave = "MindFormers", "pipeline_stage", "pp_interleave_num"
    found = read_settings(text, program, "offset", [size, interleave, VISIBLE])
    offset, layers = found["offset"], len(names.layers)
    nested = isinstance(offset, list) and bool(offset) and isinstance(offset[0], list)
    chunks = [
        _numbers(row, f"{program}'s offset", -layers) for row in (offset if nested else [offset])
    ]
    stages = len(chunks[0])
    if any(len(row) != stages for row in chunks):
        raise PartitionError(
            f"{program}'s offset is {offset}, with lists of several lengths; write one number for "
            "each device in each"
        )
    check_size(found.get(size), stages, program, size)
    check_size(found.get(interleave), len(chunks), program, interleave)
    order = rank_devices(found.get(VISIBLE), devices, program)
    base = layers // (stages * len(chunks))
    counts = [base + number for row in chunks for number in row]
    return stages_of_counts(counts, layers, order, program, len(chunks))


def write_ranges(names: LayerNames, stages: Sequence[StageLayers]) -> Words:
    """Return stages as settings of MindFormers in PyNative mode: ranges of layers of each device.

    With several stages a device, its text has one range for each, such as ``"0-4,10-14"``.
    """
    check_stages("MindFormers", stages, has_chunks=True)
    size = len({stage.device for stage in stages})
    ends = list(itertools.accumulate(stage.count for stage in stages))
    ranges = [
        f"{end - stage.count}-{end - 1}" if stage.count > 1 else str(end - 1)
        for stage, end in zip(stages, ends, strict=True)
    ]
    settings: dict[str, object] = {
        "pipeline_parallel": size,
        _RANGES: [",".join(ranges[rank::size]) for rank in range(size)],
    }
    if size < len(stages):
        settings["pipeline_parallel_interleave_num"] = len(stages) // size
    return settings | order_setting(stages)


def read_ranges(text: str, names: LayerNames, devices: Sequence[str]) -> list[StageLayers]:
    """Return the stages of ranges of layers of MindFormers, on the devices in order."""
    program, size = "MindFormers", "pipeline_parallel"
    interleave = f"{size}_interleave_num"
    found = read_settings(text, program, _RANGES, [size, interleave, VISIBLE])
    ranks = found[_RANGES]
    if not isinstance(ranks, list) or not ranks or not all(isinstance(r, str) for r in ranks):
        raise PartitionError(
            f"{program}'s {_RANGES} is {shown(ranks)}; write a list of ranges of layers, one text "
            'for each device, such as ["0-4", "5-9"]'
        )
    chunks = [rank.split(",") for rank in ranks]
    if any(len(own) != len(chunks[0]) for own in chunks):
        raise PartitionError(
            f"{program}'s {_RANGES} has unlike numbers of ranges; write as many for each device"
        )
    check_size(found.get(size), len(ranks), program, size)
    check_size(found.get(interleave), len(chunks[0]), program, interleave)
    counts: list[int] = []
    for part in (own[at] for at in range(len(chunks[0])) for own in chunks):
        first, dash, last = part.partition("-")
        edges = [
            read_number(edge, f"{program}'s {_RANGES}") for edge in (first, last)[: 1 + bool(dash)]
        ]
        if edges[0] != sum(counts) or edges[-1] < edges[0]:
            raise PartitionError(
                f"{program}'s {_RANGES} has {part.strip()!r} where layer {sum(counts)} begins; "
                "write all layers in order, chunk by chunk"
            )
        counts.append(edges[-1] - edges[0] + 1)
    order = rank_devices(found.get(VISIBLE), devices, program)
    return stages_of_counts(counts, len(names.layers), order, program, len(chunks[0]))


def _numbers(value: object, what: str, least: int) -> list[int]:
    if isinstance(value, int):
        value = [value]
    elif isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list) or not value:
        raise PartitionError(
            f"{what} is {shown(value)}; write a list of numbers, one for each stage"
        )
    return [read_number(number, what, least) for number in value]
