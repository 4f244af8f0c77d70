"""Engines that take a number of layers for every stage: vLLM, SGLang, TensorRT-LLM, MindFormers.

The first stage has the embedding, the last the norm and the head; both have weights that the two
share. Based on the sources of 2025 and 2026, without a test against the programs: vLLM
``distributed/utils.py``, SGLang ``distributed/utils.py``, TensorRT-LLM ``llmapi/llm_args.py``,
MindFormers ``models/utils.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    without_host,
)
from solver import PartitionError
from solver.model.text import shown


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
        order = rank_devices(found.get(VISIBLE), without_host(devices, program), program)
        return stages_of_counts(counts, len(names.layers), order, program)

    return write, read


def write_pp_partition(names: LayerNames, stages: Sequence[StageLayers]) -> Words:
    """Return stages as settings of TensorRT-LLM: the layers of each rank."""
    check_stages("TensorRT-LLM", stages)
    counts = [stage.count for stage in stages]
    settings: dict[str, object] = {"pipeline_parallel_size": len(counts), "pp_partition": counts}
    return settings | order_setting(stages)


def read_pp_partition(text: str, names: LayerNames, devices: Sequence[str]) -> list[StageLayers]:
    """Return the stages of ``pp_partition`` of TensorRT-LLM, on the devices in order."""
    program, size = "TensorRT-LLM", "pipeline_parallel_size"
    found = read_settings(text, program, "pp_partition", [size, VISIBLE])
    counts = _numbers(found["pp_partition"], f"{program}'s pp_partition", 1)
    check_size(found.get(size), len(counts), program, size)
    order = rank_devices(found.get(VISIBLE), without_host(devices, program), program)
    return stages_of_counts(counts, len(names.layers), order, program)


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
