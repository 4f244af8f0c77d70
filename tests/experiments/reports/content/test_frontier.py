"""What less memory costs, from the cases and rows of a study."""

from dataclasses import replace

from experiments.comparison.records import Case, CaseKey
from experiments.reports.content.frontier import frontier_tables
from tests.support.recompute_cases import SMALL, small_problem
from tests.support.studies import row, study

SIZES = (2224, 2064, 2208)


def key(size, model="m", objective=("bottleneck",)):
    return CaseKey(model, f"2x{size}B", objective, "training")


def case(size, **changes):
    problem = small_problem(SMALL[0], size)
    return Case(key(size), problem.replace(**changes) if changes else problem)


def found_in(*rows, cases=None):
    return frontier_tables(study(*rows, cases=cases or tuple(map(case, SIZES))))


def test_a_curve_has_a_value_for_each_size():
    (found,) = found_in(
        row("auto", 131, case=key(2224), bound=131),
        row("auto", 155, case=key(2064), bound=155),
        row("recompute-all", 170, case=key(2064), seed=1),
        row("recompute-all", 160, case=key(2064)),
        row("auto", 131, case=key(2208), bound=131),
        row("auto", 120, case=key(2208), without=("prices",)),
        row("recompute-none", 150, case=key(2224)),
        row("recompute-none", 140, case=key(2208), feasible=False),
        row("greedy", 150, case=key(2224)),
    )
    assert found.header == ("memory of each device", "auto", "recompute-all", "recompute-none")
    assert found.rows == (
        ("2.064 kB", "155 ns", "160 ns", "-"),
        ("2.208 kB", "131 ns", "-", "-"),
        ("2.224 kB", "131 ns", "-", "150 ns"),
    )
    assert found.caption == (
        "Memory of each device against bottleneck: m on 2 devices, 4 microbatches by 1f1b"
    )


def test_cases_that_make_no_curve():
    rows = [row("auto", 131, case=key(size)) for size in SIZES]
    assert len(found_in(*rows)) == 1
    assert not found_in(*rows, cases=(case(2224),))
    assert not found_in(*rows, cases=tuple(case(size, recompute="none") for size in SIZES))
    assert not found_in(row("greedy", 131, case=key(2224)))
    assert not found_in(row("auto", case=key(2224), status="infeasible"))
    devices = [
        replace(device, memory_bytes=3000 + number)
        for number, device in enumerate(case(2224).problem.devices)
    ]
    unequal = case(2208, devices=devices)
    assert not found_in(*rows, cases=(case(2224), unequal))
