"""Differences between two calls: of values, structure, effects and gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fx_bridge.equivalence.containers import first_difference, named_leaves
from fx_bridge.equivalence.observation import Observation
from fx_bridge.storages.tensor_subclasses import is_wrapper, parts_of, settings_of
from solver.model.quantities import counted


@dataclass(slots=True)
class Comparison:
    """Collects differences, one sentence for each."""

    differences: list[str] = field(default_factory=list)
    max_abs_error: float = 0.0
    values_compared: bool = True
    notes: list[str] = field(default_factory=list)
    _compared: dict[tuple[int, int], Any] = field(default_factory=dict)

    def trees(self, what: str, expected: Any, found: Any, suffix: str = "") -> None:
        """Compare containers and their leaves."""
        expected_leaves, expected_spec = named_leaves(expected)
        found_leaves, found_spec = named_leaves(found)
        if expected_spec != found_spec:
            path, there, here = first_difference(expected, found)
            place = f" at {path}" if path else ""
            text = f"the {what} has another structure{place}: {here} instead of {there} {suffix}"
            self._incomparable(text.rstrip())
            return
        for (path, a), (_, b) in zip(expected_leaves, found_leaves, strict=True):
            self.leaves(f"{what}{path} {suffix}".rstrip(), a, b)

    def _incomparable(self, difference: str) -> None:
        self.max_abs_error = math.inf
        self.differences.append(difference)

    def leaves(self, where: str, expected: Any, found: Any) -> None:
        """Compare two tensors, or two values of any other type."""
        if isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor):
            self.tensors(where, expected, found)
        elif type(expected) is not type(found):
            self.differences.append(
                f"{where} is a {type(found).__name__} instead of a {type(expected).__name__}"
            )
        elif _is_plain_object(expected):
            # For example a cache that is no pytree: each call had a copy of its own.
            self._objects(where, expected, found)
        elif not (expected is found or expected == found or expected != expected):
            self.differences.append(f"{where} is {found!r} instead of {expected!r}")

    def _objects(self, where: str, expected: Any, found: Any) -> None:
        pair = id(expected), id(found)
        if expected is found or pair in self._compared:
            return
        self._compared[pair] = expected, found
        theirs, ours = vars(expected), vars(found)
        for name in dict.fromkeys((*theirs, *ours)):
            if name in theirs and name in ours:
                self.trees(f"{where}.{name}", theirs[name], ours[name])
            else:
                kind = "lacks" if name in theirs else "has"
                self.differences.append(f"{where} {kind} the attribute {name!r} in the split")

    def _wrappers(
        self, where: str, expected: torch.Tensor, found: torch.Tensor, atol: float | None
    ) -> None:
        there, here = parts_of(expected), parts_of(found)
        settings = [settings_of(tensor) for tensor in (expected, found)]
        if there.keys() != here.keys() or settings[0] != settings[1]:
            self._incomparable(
                f"{where} is made of {list(here)} with {settings[1]} instead of {list(there)} "
                f"with {settings[0]}"
            )
            return
        for path, part in there.items():
            self.tensors(f"{where}{path}", part, here[path], atol)

    def tensors(
        self, where: str, expected: torch.Tensor, found: torch.Tensor, atol: float | None = None
    ) -> None:
        """Compare two tensors, to the bit without `atol`; any NaN equals any other."""
        kinds = [type(each) if is_wrapper(each) else None for each in (expected, found)]
        if kinds[0] is not kinds[1]:
            self._incomparable(
                f"{where} is a {type(found).__name__} instead of a {type(expected).__name__}"
            )
            return
        for attribute in ("dtype", "shape", "layout"):
            a, b = getattr(expected, attribute), getattr(found, attribute)
            if a != b:
                if attribute == "shape":
                    a, b = tuple(a), tuple(b)
                self._incomparable(f"{where} has {attribute} {b} instead of {a}")
                return
        if is_wrapper(expected) and not expected.is_nested:
            self._wrappers(where, expected, found, atol)
            return
        if expected.is_meta or found.is_meta:
            self.values_compared = False
            if expected.is_meta != found.is_meta:
                self.differences.append(f"one of the two {where} is on the meta device")
            return
        a, b = expected.detach().to_dense().cpu(), found.detach().to_dense().cpu()
        if a.is_floating_point() and a.element_size() == 1:
            # torch has no arithmetic for float8, whose values are exact in float32.
            a, b = a.to(torch.float32), b.to(torch.float32)
        same = a == b
        if a.is_floating_point() or a.is_complex():
            if atol is None:
                same &= _signs(a) == _signs(b)
            same |= a.isnan() & b.isnan()
        if bool(same.all()):
            return
        precise = torch.complex128 if a.is_complex() else torch.float64
        error = (a.to(precise) - b.to(precise)).abs()[~same].max().item()
        error = math.inf if math.isnan(error) else error
        self.max_abs_error = max(self.max_abs_error, error)
        if atol is not None and error <= atol:
            return
        by = f"by at most {error:.3g}" if error else "by the sign of zero"
        self.differences.append(
            f"{where} differs in {int((~same).sum()):,} of {counted(same.numel(), 'element')}, {by}"
        )


def _is_plain_object(value: Any) -> bool:
    """Return True if `value` has attributes and Python compares it by identity."""
    inherited = "__eq__" not in {name for kind in type(value).__mro__[:-1] for name in vars(kind)}
    return inherited and hasattr(value, "__dict__") and not callable(value)


def _signs(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sign bits, by which 0.0 and -0.0 differ; of complex numbers, as one number."""
    if not tensor.is_complex():
        return tensor.signbit()
    return torch.view_as_real(tensor.resolve_conj()).signbit().long() @ torch.tensor([1, 2])


def compare_inputs(
    comparison: Comparison,
    reference: Observation,
    found: Observation,
    given: tuple[tuple[Any, ...], Mapping[str, Any]],
) -> None:
    """Compare the inputs after the call, each by itself.

    A graph writes tensors of its caller, but does not change the caller's containers: it returns
    the values that a model puts there. So a cache that the model grows in place makes no difference
    to a caller that goes on with the returned one, which was compared as an output.
    """
    for index, what in enumerate(("args", "kwargs")):
        theirs, ours = reference.inputs[index], found.inputs[index]
        before: Any = given[index]
        for key in before if isinstance(before, Mapping) else range(len(before)):
            where = f"{what}[{key!r}]"
            own = Comparison(values_compared=comparison.values_compared)
            own.trees(where, theirs[key], ours[key], "after the call")
            if own.differences and _is_untouched(before[key], ours[key]):
                if (index, key) in reference.returned:
                    comparison.notes.append(
                        f"the model changes what {where} holds and returns it, the split returns "
                        "the same and leaves the caller's as it was; go on with what is returned"
                    )
                    continue
                own.differences[0] += (
                    f", for the model changes what {where} holds, which a graph does not; let it "
                    "return that"
                )
            comparison.differences += own.differences
            comparison.max_abs_error = max(comparison.max_abs_error, own.max_abs_error)
            comparison.values_compared &= own.values_compared


def _is_untouched(before: Any, after: Any) -> bool:
    own = Comparison()
    own.trees("input", before, after)
    return not isinstance(before, torch.Tensor) and not own.differences


def compare_state(comparison: Comparison, reference: Observation, found: Observation) -> None:
    """Compare parameters, buffers and other tensors after the call, by original name."""
    for name, held in reference.state.items():
        for copy_ in found.state.get(name, ()):
            if copy_ is not held[0]:
                comparison.tensors(f"{name!r} after the call", held[0], copy_)
    for names in reference.written:
        # A split holds only used tensors, under one of several names.
        if names.isdisjoint(found.state):
            comparison.differences.append(
                f"{min(names)!r} is written by the model, but the split does not hold it"
            )


def compare_sharing(comparison: Comparison, reference: Observation, found: Observation) -> None:
    """Compare the memory that outputs share with each other, with inputs and with weights."""
    known = [set(reference.state), set(found.state)]

    def common(groups: set[frozenset[str]]) -> set[frozenset[str]]:
        kept = (
            frozenset(n for n in group if n[:5] in ("input", "outpu") or all(n in k for k in known))
            for group in groups
        )
        return {group for group in kept if len(group) > 1}

    expected, actual = common(reference.shared), common(found.shared)
    for groups, verb in ((expected - actual, "share"), (actual - expected, "do not share")):
        for group in sorted(map(sorted, groups)):
            comparison.differences.append(
                f"{' and '.join(group)} {verb} memory in the model, and not so in the split"
            )


def compare_gradients(
    comparison: Comparison,
    reference: Observation,
    found: Observation,
    classes: list[tuple[str, ...]],
    gradient_rtol: float | None,
) -> None:
    """Compare gradients of parameters, by `classes` of tied names, and of inputs."""
    if len(reference.differentiable) == len(found.differentiable):
        for index, pair in enumerate(
            zip(reference.differentiable, found.differentiable, strict=True)
        ):
            if pair[0] != pair[1]:
                one, other = ("model", "split") if pair[0] else ("split", "model")
                comparison.differences.append(
                    f"tensor {index} of the output requires a gradient in the {one} but not in "
                    f"the {other}"
                )
    labels = [f"parameter {' = '.join(map(repr, names))}" for names in classes]
    gradients = [
        (label, _total(reference, names), _total(found, names))
        for label, names in zip(labels, classes, strict=True)
    ]
    pairs = zip(reference.input_gradients, found.input_gradients, strict=True)
    gradients += [(f"differentiable input {index}", *pair) for index, pair in enumerate(pairs)]
    # Some gradients are zero up to rounding, such as that of a bias before a softmax, so all have
    # one scale.
    scale = max((_largest(expected) for _, expected, _ in gradients), default=0.0)
    for name, expected, actual in gradients:
        where = f"the gradient of {name}"
        # A missing gradient and one of zeros differ to optimisers with momentum.
        if (expected is None) != (actual is None):
            missing, present = ("split", "model") if actual is None else ("model", "split")
            text = f"{where} exists in the {present} but not in the {missing}"
            comparison.differences.append(text)
        elif expected is not None and actual is not None:
            own_rtol = 16 * torch.finfo(expected.dtype).eps
            rtol = own_rtol if gradient_rtol is None else gradient_rtol
            comparison.tensors(where, expected, actual, rtol * scale)


def _largest(tensor: torch.Tensor | None) -> float:
    if tensor is None or tensor.is_meta or not tensor.numel():
        return 0.0
    return float(tensor.to_dense().nan_to_num(0.0, 0.0, 0.0).abs().max())


def _total(observation: Observation, names: tuple[str, ...]) -> torch.Tensor | None:
    parameters: dict[int, torch.Tensor | None] = {}
    for name in names:
        parameters.update(observation.gradients.get(name, {}))
    gradients = [gradient for gradient in parameters.values() if gradient is not None]
    return sum(gradients[1:], gradients[0]) if gradients else None
