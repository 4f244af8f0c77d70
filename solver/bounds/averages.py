"""Linear-time lower bounds of every objective: averages, longest paths and transfers.

They hold for any order of devices and any number of chunks.
"""

from __future__ import annotations

from solver.bounds.pipeline_step import least_filled_step_ns, step_of_load_ns
from solver.bounds.regional.held_weights import stage_weights
from solver.bounds.regional.positions import PositionBound
from solver.bounds.regional.spine import longest_path, spine
from solver.bounds.shared_time import least_shared_ns
from solver.model.problem_fields import ObjectiveName
from solver.presolve.device_kinds import usable_devices
from solver.presolve.instance import Instance


def least_value(units: Instance, name: ObjectiveName, position_bound: PositionBound | None) -> int:
    """Return a lower bound of one objective over all plans.

    `position_bound` counts for ``bottleneck``, where it applies.
    """
    if name == "bottleneck":
        least = max(least_average_ns(units), least_shared_ns(units))
        if position_bound is None:
            return least
        least = position_bound.least_bottleneck_ns(least)
        part = spine(units)
        if len(part) < len(units):
            least = PositionBound(part, usable_devices(units)).least_bottleneck_ns(least)
        return least
    if name == "latency":
        return longest_path_ns(units)
    if name == "step":
        # Holds with overlap too: every microbatch takes its path, and computes on its devices.
        load_ns = max(least_average_ns(units), least_shared_ns(units))
        filled_ns = least_filled_step_ns(units, usable_devices(units))
        return max(filled_ns, step_of_load_ns(units.problem, load_ns))
    if name == "devices":
        return least_devices(units)
    if name == "peak_memory":
        return least_peak_permille(units)
    # All operators on one device send nothing.
    return 0


def least_average_ns(units: Instance, slots: int | None = None) -> int:
    """Return the larger of the average load and the longest unit, a bound of some device's load.

    Proof: measure work by the fastest class. A device of class c that is busy for T has done at
    most T / r of it, where r is the least ratio of a unit's time on c to its fastest time. The
    `slots` devices with the largest 1 / r do at most T * sum(1 / r) together, which must be all the
    work. Transfers only add, and overlapped with compute they take away nothing.

    By default `slots` are as many as a plan can use.
    """
    slots = usable_devices(units) if slots is None else slots
    rates = [1.0 / units.slowness[device.device_class] for device in units.problem.devices]
    rate = sum(sorted(rates, reverse=True)[:slots])
    # The last division is in floats: round down by more than its error.
    average = int(int(units.fastest_ns.sum()) / rate * (1 - 1e-12))
    return max(average, int(units.fastest_ns.max(initial=0)))


def longest_path_ns(units: Instance) -> int:
    """Return the time of the longest path of units, each on its fastest class.

    Proof: of two consecutive units on a path, the second is on the first one's stage, which takes
    the time of both, or on a stage that starts after it. So the stages of the units lie on a path
    of the quotient graph, and take at least the units' times. A load that overlaps with transfers
    is still at least its compute time.
    """
    return int(units.fastest_ns[longest_path(units)].sum())


def least_devices(units: Instance) -> int:
    """Return the number of devices, the largest first, that hold all weights.

    One more than the number of devices if even all of them are too small.
    """
    left, count = int(stage_weights(units).sum()), 0
    sizes = [device.memory_bytes for device in units.problem.devices]
    for size in sorted(sizes, key=lambda size: -(size if size is not None else 1 << 62)):
        count += 1
        if size is None or left <= size:
            return count
        left -= size
    return count + 1


def least_peak_permille(units: Instance) -> int:
    """Return a lower bound of the largest used share of any device's memory, per mille.

    Proof: if every device holds at most p / 1000 of its memory, all weights are at most that share
    of the memory of the largest devices that a plan can use.
    """
    sizes = [device.memory_bytes for device in units.problem.devices]
    known = sorted((size for size in sizes if size is not None), reverse=True)
    if len(known) < len(sizes):
        return 0
    memory = sum(known[: usable_devices(units)])
    return -(-1000 * int(stage_weights(units).sum()) // memory)
