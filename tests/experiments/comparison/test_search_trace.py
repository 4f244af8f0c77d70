"""Traces of searches: clock, order, and the point at the end."""

from experiments.comparison.planner_row import SearchTrace
from experiments.comparison.records import SearchPoint
from solver import Progress


def moment(incumbent, bound, name="bottleneck"):
    return Progress("cp-sat", name, incumbent, bound, elapsed_s=99.0)


def test_a_point_has_the_time_since_the_start_and_keeps_the_best():
    clock = iter([10.0, 11.0, 12.0, 14.0])
    told = []
    trace = SearchTrace(told.append, lambda: next(clock))
    moments = [moment(9, None), moment(None, 2), moment(9, 1), moment(7, 3)]
    for each in moments:
        trace(each)
    assert told == moments
    assert trace._points == [
        SearchPoint(1.0, "bottleneck", 9, None),
        SearchPoint(2.0, "bottleneck", 9, 2),
        SearchPoint(4.0, "bottleneck", 7, 3),
    ]


def test_the_next_objective_starts_anew():
    trace = SearchTrace()
    trace(moment(9, 9))
    trace(moment(4, 1, "transfer"))
    last = trace._points[-1]
    assert (last.objective_name, last.incumbent, last.bound) == ("transfer", 4, 1)
