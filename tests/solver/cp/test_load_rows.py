"""Rows of loads: what follows for several slots together, and how many rows say it."""

import pytest

from solver import Device
from solver.cp.formulation import CpSatFormulation
from solver.cp.stage_model import StageModel
from solver.presolve.instance import condense
from tests.support.bounds import complete_bounds
from tests.support.graphs import chain


def formulation_of(count, devices, *, latency_ns=10, largest_load_ns=None, **settings):
    """Returns the model of a chain of operators that may be anywhere."""
    of = {f"op{number}": {"latency_ns": latency_ns} for number in range(count)}
    units = condense(chain(count, value_bytes=0, devices=devices, of=of))
    windows = complete_bounds(units).windows(len(devices))
    stages = StageModel(units, windows, len(devices), **settings)
    return CpSatFormulation(stages, largest_load_ns)


def equal(count):
    return [Device(f"d{number}") for number in range(count)]


def is_refuted(model, fixed):
    """Returns whether bounds of variables refute the rows of a model that always count."""
    low, high = ([list(each.domain)[end] for each in model.variables] for end in (0, -1))
    for index, value in fixed.items():
        low[index] = high[index] = value
    rows = []
    for entry in model.constraints:
        if entry.linear.vars and not entry.enforcement_literal:
            linear = entry.linear
            terms = list(zip(linear.vars, linear.coeffs, strict=True))
            least, *_, most = linear.domain
            rows.append((terms, most))
            rows.append(([(index, -factor) for index, factor in terms], -least))
    is_new = True
    while is_new:
        is_new = False
        for terms, most in rows:
            slack = most - sum(c * (low if c > 0 else high)[index] for index, c in terms)
            if slack < 0:
                return True
            for index, c in terms:
                if c > 0 and low[index] + slack // c < high[index]:
                    high[index], is_new = low[index] + slack // c, True
                elif c < 0 and high[index] - slack // -c > low[index]:
                    low[index], is_new = high[index] - slack // -c, True
    return False


def is_refuted_behind_the_first_slot(formulation):
    """Returns whether bounds refute all plans that have every operator behind the first slot."""
    formulation.objective("bottleneck")
    stages = formulation.stages
    behind = [stages.reaches(unit, 1) for unit in range(len(stages.units))]
    fixed = {literal.index: 1 for literal in behind if literal is not True}
    return is_refuted(stages.model.proto, fixed)


@pytest.mark.parametrize("slots", [3, 5, 8])
def test_bounds_pass_from_border_to_border(slots):
    for most_ns in (19, 20):
        formulation = formulation_of(2 * slots - 2, equal(slots), largest_load_ns=most_ns)
        assert is_refuted_behind_the_first_slot(formulation) == (most_ns == 19)


def test_bounds_pass_from_one_class_of_devices_to_another():
    """Tests 40 ns of work on the faster class, which two devices share."""
    devices = [Device(f"d{number}", device_class="aab"[number]) for number in range(3)]
    for most_ns in (19, 27):
        formulation = formulation_of(
            8, devices, latency_ns={"a": 5, "b": 10}, largest_load_ns=most_ns, order=(0, 0, 1)
        )
        assert is_refuted_behind_the_first_slot(formulation) == (most_ns == 19)
