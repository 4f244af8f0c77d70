"""A plan in the words of every program that takes one, or the reason it cannot be expressed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from functools import partial

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.interop.checkpoints import checkpointed_modules
from fx_bridge.interop.engines import ENGINES, engine_words
from fx_bridge.interop.megatron import megatron_arguments
from fx_bridge.interop.write_plans import device_map, split_spec, stage_devices
from fx_bridge.presentation.page import HandOver
from solver import PartitionError, PartitionPlan, PartitionProblem


def hand_overs(
    captured: CapturedGraph, plan: PartitionPlan, problem: PartitionProblem | None = None
) -> list[HandOver]:
    """Return the output of ``fxpartition hand-over`` for each program.

    `problem`, that of the plan, is needed only if the plan recomputes operators.
    """
    writers: dict[str, Callable[[], object]] = {
        "accelerate": lambda: device_map(captured, plan),
        "split-spec": lambda: {
            "split_spec": {
                path: point.name.lower() for path, point in split_spec(captured, plan).items()
            },
            "devices": stage_devices(plan),
        },
        **{name: partial(engine_words, captured, plan, name) for name in ENGINES},
        "megatron": lambda: megatron_arguments(captured, plan, problem=problem),
    }
    if plan.recomputed:
        writers["checkpoint-wrapper"] = lambda: checkpointed_modules(
            captured, plan, problem=problem
        )
    return [_written(program, write) for program, write in writers.items()]


def _written(program: str, write: Callable[[], object]) -> HandOver:
    try:
        words = write()
    except PartitionError as error:
        return HandOver(program, str(error), fits=False)
    if program in ENGINES and isinstance(words, list):
        return HandOver(program, shlex.join(words), fits=True)
    return HandOver(program, json.dumps(words), fits=True)
