"""What brute force says of an answer of a search."""

from solver import SolveStatus


def check_proven(result, best, label=""):
    """Check that an answer is proven and the one of brute force; return whether it is a plan."""
    expected = SolveStatus.INFEASIBLE if best is None else SolveStatus.OPTIMAL
    told = f"{label}: the optimum is {best}, not {result}"
    assert result.status is expected, told
    assert result.objective_values == (best and best[0]), told
    assert best is None or result.objective_bounds == best[0], told
    return best is not None


def check_true(result, best, label=""):
    """Check that an answer claims no more than is true; it need not be proven."""
    told = f"{label}: the optimum is {best}, not {result}"
    if best is None:
        assert result.status in (SolveStatus.INFEASIBLE, SolveStatus.UNKNOWN), told
        return
    assert result.status is not SolveStatus.INFEASIBLE, told
    assert result.objective_values is None or result.objective_values >= best[0], told
    bounds = result.objective_bounds or ()
    assert bounds <= best[0][: len(bounds)], told
    assert result.status is not SolveStatus.OPTIMAL or result.objective_values == best[0], told
