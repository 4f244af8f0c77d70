"""Check that a split module computes exactly the same as the original.

Values are compared to the bit: the same kernels on the same machine give the same values, so any
difference is a defect of the split, not of the arithmetic. Gradients are the exception. Autograd
adds up the gradients from the readers of a value in the reverse of their execution order. If a plan
interleaves stages, the split runs them in another order, and sums of three or more terms round
differently.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fx_bridge.equivalence.calls import checked_inputs
from fx_bridge.equivalence.differences import (
    Comparison,
    compare_gradients,
    compare_inputs,
    compare_sharing,
    compare_state,
)
from fx_bridge.equivalence.observation import Observation, observe, original_name
from fx_bridge.storages.autocast import autocast_dtypes, types_here
from fx_bridge.storages.replay import without_fast_path
from solver import PartitionError
from solver.model.checks import only_given
from solver.model.text import shown


@dataclass(frozen=True, slots=True)
class EquivalenceReport:
    """The result of comparing one call of each of two modules.

    Attributes
    ----------
    outputs_equal : bool
        Structure, types, shapes and values of the outputs, and of the inputs after the call; with
        `aliasing`, also the memory shared with the outputs.
    max_abs_error : float
        Largest absolute difference of an element of the outputs, the gradients and the state;
        infinite if one is NaN or the shapes differ, 0.0 for meta tensors.
    gradients_equal : bool or None
        None if gradients were not compared.
    state_equal : bool
        Parameters, buffers and other tensors of the modules after the call.
    random_state_equal : bool
        State of the random number generators after the call.
    values_compared : bool
        False if there were meta tensors, of which only shapes and types can be compared.
    differences : tuple of str
        One sentence for each, naming the path of the output, parameter or buffer.
    notes : tuple of str
        Remarks for the caller that are no differences: an input that the model fills in place and
        returns, while the split returns another; a fast path of torch that was off.
    """

    outputs_equal: bool
    max_abs_error: float
    gradients_equal: bool | None
    state_equal: bool
    random_state_equal: bool
    values_compared: bool
    differences: tuple[str, ...]
    notes: tuple[str, ...] = ()
    __repr__ = only_given

    @property
    def equal(self) -> bool:
        """True if no difference was found."""
        return not self.differences


def check_equivalence(
    model: nn.Module,
    split: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    gradients: bool = False,
    seed: int = 0,
    gradient_rtol: float | None = None,
    aliasing: bool = False,
) -> EquivalenceReport:
    """Call `model` and `split` on the same inputs, and compare outputs and effects.

    Parameters
    ----------
    model : torch.nn.Module
        The reference.
    split : torch.nn.Module
        The result of :func:`fx_bridge.split.by_plan.split_by_plan`, or any module with the
        parameter names of `model`. The stages may hold copies of shared parameters.
    args, kwargs : sequence, mapping
        Inputs; each module gets a clone.
    gradients : bool
        Also run backward from all differentiable outputs, with random cotangents, and compare
        the gradients of the parameters by their original names, and of the inputs that require
        them. The gradient of a tied parameter is the sum over its copies.
    seed : int
        Of the random numbers in both calls.
    gradient_rtol : float, optional
        Largest difference of an element of a gradient, relative to the largest element of all
        gradients of the reference. Defaults to 16 times the precision of the gradient's dtype, or
        of the dtype of an enabled autocast, because sums may round differently. 0.0 is exact, and
        holds if stages are contiguous in the graph.
    aliasing : bool
        Also compare the memory that outputs share with one another, with inputs and with weights.
        Stages on different devices share none.

    Raises
    ------
    PartitionError
        In one line: an argument is invalid, or one of the two does not run on the inputs.

    Notes
    -----
    Parameters, buffers, gradients, inputs and the random state are restored. Both modules run in
    the grad mode of the caller, which decides between kernels.

    Without gradients torch runs its transformer layers in evaluation by fused kernels
    (``torch.backends.mha``), which round differently and which no export contains. If that is the
    only difference, both are compared without them, and `notes` has the difference with them.
    """
    keywords = checked_inputs(args, kwargs)
    examples = {"model": "the model that was partitioned", "split": "result.split()"}
    for (role, example), module in zip(examples.items(), (model, split), strict=True):
        if not isinstance(module, nn.Module):
            raise PartitionError(
                f"the {role} is a {type(module).__name__}; give a torch.nn.Module, such as "
                f"{example}"
            )
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise PartitionError(f"seed is {shown(seed)}; write a whole number")
    if gradient_rtol is not None and (
        not isinstance(gradient_rtol, (int, float)) or not gradient_rtol >= 0
    ):
        raise PartitionError(
            f"gradient_rtol is {shown(gradient_rtol)}; write a number that is not negative"
        )
    if gradient_rtol is None and (lower := autocast_dtypes(types_here()).values()):
        gradient_rtol = 16 * max(torch.finfo(dtype).eps for dtype in lower)
    given = _Call(model, split, tuple(args), keywords, gradients, seed)
    report = _report(given, gradient_rtol, aliasing)
    if report.equal or not (torch.backends.mha.get_fastpath_enabled() and _has_fast_path(model)):
        return report
    with without_fast_path():
        plain = _report(given, gradient_rtol, aliasing)
    if not plain.equal:
        return report
    note = (
        "compared without torch's fast path of transformer layers, which the split does not take; "
    )
    note += f"with it, {report.differences[0]}"
    return dataclasses.replace(plain, notes=(*plain.notes, note))


@dataclass(frozen=True, slots=True)
class _Call:
    model: nn.Module
    split: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    gradients: bool
    seed: int

    def observed(self, role: str, module: nn.Module) -> Observation:
        return observe(
            role, module, self.args, self.kwargs, gradients=self.gradients, seed=self.seed
        )


def _report(call: _Call, gradient_rtol: float | None, aliasing: bool) -> EquivalenceReport:
    classes = _classes(call.model)
    reference = call.observed("model", call.model)
    found = call.observed("split", call.split)
    comparison = Comparison()
    comparison.trees("output", reference.outputs, found.outputs)
    compare_inputs(comparison, reference, found, (call.args, call.kwargs))
    if aliasing and not comparison.differences:
        compare_sharing(comparison, reference, found)
    outputs_equal = not comparison.differences
    before = len(comparison.differences)
    compare_state(comparison, reference, found)
    state_equal = len(comparison.differences) == before
    before = len(comparison.differences)
    if call.gradients:
        compare_gradients(comparison, reference, found, classes, gradient_rtol)
    gradients_equal = len(comparison.differences) == before if call.gradients else None
    random_state_equal = all(
        torch.equal(a, b) for a, b in zip(reference.random_state, found.random_state, strict=True)
    )
    if not random_state_equal:
        comparison.differences.append(
            "the state of the random number generator differs after the call"
        )
    return EquivalenceReport(
        outputs_equal=outputs_equal,
        max_abs_error=comparison.max_abs_error,
        gradients_equal=gradients_equal,
        state_equal=state_equal,
        random_state_equal=random_state_equal,
        values_compared=comparison.values_compared,
        differences=tuple(comparison.differences),
        notes=tuple(comparison.notes),
    )


def _has_fast_path(model: nn.Module) -> bool:
    """Return True if torch may fuse a part of `model` in a run without gradients."""
    fused = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
    return any(isinstance(part, fused) for part in model.modules())


def _classes(model: nn.Module) -> list[tuple[str, ...]]:
    """Return the names of every parameter of `model`; tied ones have several."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(original_name(model, name))
    return [tuple(dict.fromkeys(group)) for group in names.values()]
