"""Published problems in which it matters what runs again (tests/data/README.md)."""

import json

from solver import Device, GraphInput, Operator, PartitionProblem, Weight
from solver.model.training import Backward
from tests.support.paths import ROOT

SMALL = json.loads((ROOT / "tests/data/recompute_small.json").read_text())


def small_problem(case, memory_bytes):
    """The problem of an entry of `SMALL`, with devices of some memory."""
    weights = {f"w {op['name']}": Weight(op["weights"]) for op in case["operators"]}
    operators = [
        Operator(
            op["name"],
            op["latency"],
            op["reads"],
            storage_bytes=op["storage"],
            workspace_bytes=op["workspace"],
            value_bytes=op["storage"],
            weights=(f"w {op['name']}",),
            is_output=op["is_output"],
            backward=Backward(
                latency_ns=op["backward"],
                gradient_bytes=op["gradient"],
                kept_bytes=op["kept"],
                residual_bytes=op["residual"],
                workspace_bytes=op["backward_workspace"],
                weight_gradient_bytes=op["weight_gradient"],
                saves=op["saves"],
                recomputable=True,
                region=op["region"],
            ),
        )
        for op in case["operators"]
    ]
    return PartitionProblem(
        operators,
        [Device(f"d{rank}", memory_bytes) for rank in range(case["devices"])],
        (GraphInput("x", case["input_bytes"]),),
        weights,
        memory_model="training",
        schedule=case["schedule"],
        microbatches=case["microbatches"],
        recompute="auto",
    )
