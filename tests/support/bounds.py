"""Bounds of a whole problem, made as the search makes them."""

from solver.bounds.borders.bound import BorderBound
from solver.bounds.windows import StageBounds
from solver.presolve.device_kinds import usable_devices
from solver.presolve.instance import condense


def border_bound(problem):
    units = condense(problem)
    return BorderBound(units, usable_devices(units)) if BorderBound.applies(units) else None


def complete_bounds(units):
    """Bounds of stages that know positions and borders."""
    bounds = StageBounds(units)
    bounds.add_positions()
    bounds.add_borders()
    return bounds
