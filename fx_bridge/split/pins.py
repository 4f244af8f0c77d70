"""Pins and cuts by names of modules at any depth, or of operators.

``solver`` knows operators only (:mod:`solver.model.cuts`); here a module stands for its operators.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from solver import STAGING_HOST, PartitionError, PartitionProblem
from solver.model.text import shown

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph

Pin = int | str | Sequence[str]
"""A stage by its number, a device by its name, or several devices to choose from."""

_SUGGESTIONS: Final = 3


def check_hand_made(
    pins: Mapping[str, Pin] | None, cut_after: Sequence[str]
) -> tuple[dict[str, Pin], tuple[str, ...]]:
    """Return pins and cuts; raise PartitionError unless they have the right form."""
    pins = {} if pins is None else pins
    if not isinstance(pins, Mapping):
        raise PartitionError(
            f"pins is {shown(pins)}; write a mapping of module or operator to device or stage, "
            "such as {'lm_head': 'cuda:1'}"
        )
    for name, pin in pins.items():
        if isinstance(pin, bool) or not isinstance(pin, (int, str, Sequence)):
            raise PartitionError(
                f"pins[{name!r}] is {shown(pin)}; write the name of a device, a list of them, or "
                "the number of a stage"
            )
    if isinstance(cut_after, str) or not isinstance(cut_after, Iterable):
        raise PartitionError(
            f"cut_after is {shown(cut_after)}; write a list of modules or operators, such as "
            "['h.3']"
        )
    return dict(pins), tuple(cut_after)


def with_hand_made(
    problem: PartitionProblem,
    captured: CapturedGraph | None,
    *,
    pins: Mapping[str, Pin] | None = None,
    cut_after: Sequence[str] = (),
) -> PartitionProblem:
    """Return `problem`, that of `captured`, with pins and given ends of stages.

    Without `captured`, only operators have names; a name of both a module and an operator means the
    module. Unknown names are refused, with the closest ones, and so are pins and cuts that
    contradict each other or colocation.

    `pins` has the device of a module or operator, its allowed devices, or the number of its stage,
    an index in ``plan.stages``. Operators up to the end of one in `cut_after` are on earlier stages
    than all operators behind it. A module ends with the last operator that runs in it and, if that
    returns a tuple, with the elements taken from it next.
    """
    pins, cut_after = check_hand_made(pins, cut_after)
    if not pins and not cut_after:
        return problem
    names = _Names(problem, captured)
    operators = list(problem.operators)
    for name, pin in pins.items():
        for index in names.resolve(name, "pin"):
            op = operators[index]
            if isinstance(pin, int):
                if op.stage not in (None, pin):
                    raise PartitionError(
                        f"pin {name!r}: operator {op.name!r} is pinned to stage {op.stage} by "
                        f"another pin, and to stage {pin} by this; pin it once"
                    )
                operators[index] = replace(op, stage=pin)
                continue
            allowed = _allowed(name, pin, op.name, [*problem.device_of], op.allowed_devices)
            operators[index] = replace(op, allowed_devices=allowed)
    cuts = [names.last_of(name) for name in cut_after]
    return problem.replace(operators=tuple(operators), cuts=(*problem.cuts, *cuts))


def places_of_pins(
    problem: PartitionProblem, captured: CapturedGraph, pins: Mapping[str, Pin]
) -> dict[str, frozenset[str]]:
    """Return the devices of pinned operators, among which the host counts, by name.

    The errors are those of :func:`with_hand_made`; numbers of stages are refused.
    """
    names = _Names(problem, captured)
    found: dict[str, frozenset[str]] = {}
    places = [*problem.device_of, STAGING_HOST]
    for name, pin in pins.items():
        if isinstance(pin, int):
            raise PartitionError(
                f"pin {name!r}: stages have no numbers in plans with a host; write one of "
                f"{', '.join(places)} in place of {pin}"
            )
        for index in names.resolve(name, "pin"):
            own = problem.operators[index].name
            found[own] = _allowed(name, pin, own, places, found.get(own))
    return found


def _allowed(
    name: str,
    pin: str | Sequence[str],
    operator: str,
    places: Sequence[str],
    earlier: frozenset[str] | None,
) -> frozenset[str]:
    """Return the places that a pin and those before it leave to an operator."""
    allowed = frozenset([pin] if isinstance(pin, str) else pin)
    unknown = sorted(allowed.difference(places))
    if unknown or not allowed:
        wrong = f"there is no device {unknown[0]!r}" if unknown else "it names no device"
        raise PartitionError(
            f"pin {name!r}: {wrong}; the devices are {', '.join(places)}, and stages are numbers"
        )
    if earlier is not None and not allowed & earlier:
        raise PartitionError(
            f"pin {name!r}: operator {operator!r} is pinned to {', '.join(sorted(earlier))} by "
            f"another pin, and to {', '.join(sorted(allowed))} by this; pin it once"
        )
    return allowed if earlier is None else allowed & earlier


class _Names:
    def __init__(self, problem: PartitionProblem, captured: CapturedGraph | None) -> None:
        self._problem = problem
        self._modules = {} if captured is None else captured.modules.operators

    def resolve(self, name: object, what: str) -> list[int]:
        """Return the operators of `name`, by position in the execution order."""
        index_of = self._problem.index_of
        if isinstance(name, str) and name in self._modules:
            inside = [index_of[own] for own in self._modules[name]]
            if not inside:
                raise PartitionError(
                    f"{what} {name!r}: no operator runs in this module; name another one"
                )
            return inside
        if isinstance(name, str) and name in index_of:
            return [index_of[name]]
        known = [*self._modules, *index_of]
        close = difflib.get_close_matches(str(name), known, _SUGGESTIONS)
        hint = f"did you mean {' or '.join(map(repr, close))}?"
        if not close:
            hint = f"the first ones are {', '.join(map(repr, known[:_SUGGESTIONS]))}"
        raise PartitionError(f"{what} {name!r}: there is no such module or operator; {hint}")

    def last_of(self, name: str) -> str:
        """Return the operator after which a stage must end for a cut after `name`."""
        operators = self._problem.operators
        last = max(self.resolve(name, "cut after"))
        made = operators[last].name
        together = next(unit for unit in self._problem.units if made in unit)
        # Elements of a tuple share its storage and must share its stage.
        for element in operators[last + 1 :]:
            if element.alias_of != made or element.name not in together:
                break
            last += 1
        return operators[last].name
