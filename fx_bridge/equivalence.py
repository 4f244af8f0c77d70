"""Whether a split module computes exactly what the original computes.

Values are compared without tolerance: the same kernels on the same machine give the same
values, so that any difference is a defect of the split, not of the arithmetic. Gradients are
the exception. Autograd adds up what the readers of a value send back in the reverse of the
order in which they ran, and where a plan interleaves stages, the split runs them in another
order: sums of three or more terms then round differently.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fx_bridge.inputs import checked_inputs
from fx_bridge.messages import first_line
from solver import PartitionError


@dataclass(frozen=True, slots=True)
class EquivalenceReport:
    """What one call of each of two modules had in common.

    Attributes
    ----------
    outputs_equal : bool
        Structure, types, shapes and values of the outputs, and of the inputs after the call.
    max_abs_error : float
        Largest absolute difference of an element of the outputs, the gradients and the
        buffers; infinite where one is NaN or the shapes differ, 0.0 for meta tensors.
    gradients_equal : bool or None
        None when gradients were not asked for.
    buffers_equal : bool
        Buffers after the call.
    random_state_equal : bool
        State of the random number generators after the call.
    values_compared : bool
        False when there were meta tensors, of which only shapes and types can be compared.
    differences : tuple of str
        One sentence for each, naming the path of the output, parameter or buffer.
    """

    outputs_equal: bool
    max_abs_error: float
    gradients_equal: bool | None
    buffers_equal: bool
    random_state_equal: bool
    values_compared: bool
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether no difference was found."""
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
) -> EquivalenceReport:
    """Call `model` and `split` on the same inputs and compare all that can be observed.

    Parameters
    ----------
    model : torch.nn.Module
        The reference.
    split : torch.nn.Module
        The result of :func:`fx_bridge.splitting.split_by_plan`, or any module with the
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
        gradients of the reference. None is 16 times the precision of the gradient's dtype, for
        the reason above; 0.0 is exact, and holds where stages are contiguous in the graph.

    Returns
    -------
    EquivalenceReport

    Raises
    ------
    PartitionError
        In one line: an argument is invalid, or one of the two does not run on the inputs.

    Notes
    -----
    Parameters, buffers, gradients and the random state are as before when it returns. Both
    modules run in the grad mode of the caller, which decides between kernels.
    """
    keywords = checked_inputs(args, kwargs)
    for what, module in (("model", model), ("split", split)):
        if not isinstance(module, nn.Module):
            raise PartitionError(
                f"the {what} is a {type(module).__name__}; give a torch.nn.Module, such as "
                + ("the model that was partitioned" if what == "model" else "result.split()")
            )
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise PartitionError(f"seed is {seed!r}; write a whole number")
    if gradient_rtol is not None and (
        not isinstance(gradient_rtol, (int, float)) or not gradient_rtol >= 0
    ):
        raise PartitionError(
            f"gradient_rtol is {gradient_rtol!r}; write a number that is not negative"
        )
    with _unchanged(model, split):
        with _run("the model fails on these inputs", "pass inputs that it accepts"):
            reference = _observe("model", model, tuple(args), keywords, gradients, seed)
        with _run(
            "the split fails on inputs that the model accepts",
            "a graph keeps the sizes and types of the inputs that it was captured with: pass such",
        ):
            found = _observe("split", split, tuple(args), keywords, gradients, seed)
        classes = _classes(model)
    comparison = _Comparison()
    comparison.trees("output", reference.outputs, found.outputs)
    for what, expected, actual in zip(
        ("args", "kwargs"), reference.inputs, found.inputs, strict=True
    ):
        comparison.trees(what, expected, actual, "after the call")
    outputs_equal = not comparison.differences
    before = len(comparison.differences)
    _compare_buffers(comparison, reference.buffers, found.buffers, reference.changed)
    buffers_equal = len(comparison.differences) == before
    before = len(comparison.differences)
    if gradients:
        _compare_gradients(comparison, reference, found, classes, gradient_rtol)
    gradients_equal = len(comparison.differences) == before if gradients else None
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
        buffers_equal=buffers_equal,
        random_state_equal=random_state_equal,
        values_compared=comparison.values_compared,
        differences=tuple(comparison.differences),
    )


# -- running -------------------------------------------------------------------------------


@contextlib.contextmanager
def _run(failure: str, remedy: str) -> Iterator[None]:
    """Say in one line what a module raises that is called on inputs it was not made for."""
    try:
        yield
    except PartitionError:
        raise
    except Exception as error:
        raise PartitionError(
            f"{failure} ({type(error).__name__}: {first_line(error)}); {remedy}"
        ) from error


@dataclass(slots=True)
class _Observation:
    """All that a call of a module leaves behind."""

    outputs: Any
    inputs: Any
    buffers: dict[str, list[torch.Tensor]]
    """By original name; one entry for each stage that holds the buffer."""
    changed: set[str]
    """Names of the buffers that the call wrote or replaced."""
    random_state: list[torch.Tensor]
    gradients: dict[str, dict[int, torch.Tensor | None]] = field(default_factory=dict)
    """By original name, then by the identity of the parameter."""
    input_gradients: list[torch.Tensor | None] = field(default_factory=list)


def _observe(
    what: str,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    gradients: bool,
    seed: int,
) -> _Observation:
    with _unchanged(module):
        for parameter in module.parameters():
            parameter.grad = None
        before = {name: [b.clone() for b in held] for name, held in _buffers(module).items()}
        inputs = _clone((args, kwargs))
        torch.manual_seed(seed)
        with torch.enable_grad() if gradients else contextlib.nullcontext():
            outputs = module(*inputs[0], **inputs[1])
        random_state = _random_state()
        buffers = {
            name: [buffer.detach().clone() for buffer in held]
            for name, held in _buffers(module).items()
        }
        observation = _Observation(
            # Outputs may be parameters or buffers, which are about to be restored.
            outputs=pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), outputs),
            inputs=pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), inputs),
            buffers=buffers,
            changed={
                name
                for name, held in buffers.items()
                if not all(
                    _same_bits(a, b) for a, b in zip(before.get(name, []), held, strict=False)
                )
            },
            random_state=random_state,
        )
        if gradients:
            remedy = "call check_equivalence without gradients"
            if what == "split":
                # As when torch.export writes buffers at the end that backward needs as they were.
                remedy += ", or compare with the captured module, which is split as it is"
            with _run(f"the backward pass of the {what} fails", remedy):
                _backward(outputs, seed)
            for name, parameter in module.named_parameters(remove_duplicate=False):
                held_by = observation.gradients.setdefault(_original_name(module, name), {})
                held_by[id(parameter)] = parameter.grad
            observation.input_gradients = [
                leaf.grad if leaf.is_leaf else None
                for leaf in pytree.tree_leaves(inputs)
                if isinstance(leaf, torch.Tensor) and leaf.requires_grad
            ]
    return observation


def _backward(outputs: Any, seed: int) -> None:
    roots = [
        leaf
        for leaf in pytree.tree_leaves(outputs)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    if not roots:
        raise PartitionError(
            "no output depends on a parameter that requires a gradient; "
            "call check_equivalence without gradients"
        )
    # A sum would hide what is constant under it, such as the rows of a softmax.
    generator = torch.Generator().manual_seed(seed)
    cotangents = [
        torch.empty_like(root)
        if root.is_meta
        else torch.randn(root.shape, generator=generator, dtype=torch.float64).to(root)
        for root in roots
    ]
    torch.autograd.backward(roots, cotangents)


def _clone(tree: Any) -> Any:
    """Clone all tensors of a tree of inputs, one that occurs twice once."""
    clones: dict[int, torch.Tensor] = {}

    def clone(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            # A cache object that is no pytree would otherwise be filled twice.
            return copy.deepcopy(leaf)
        if id(leaf) not in clones:
            clones[id(leaf)] = leaf.detach().clone().requires_grad_(leaf.requires_grad)
        return clones[id(leaf)]

    return pytree.tree_map(clone, tree)


def _random_state() -> list[torch.Tensor]:
    return [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]


@contextlib.contextmanager
def _unchanged(*modules: nn.Module) -> Iterator[None]:
    """Restore parameters, buffers, other tensors, gradients and the random state on exit."""
    tensors: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, bool]] = {}
    slots: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for module in modules:
        for part in module.modules():
            attributes = {k: v for k, v in part.__dict__.items() if isinstance(v, torch.Tensor)}
            for table in (part._parameters, part._buffers, attributes):
                for tensor in table.values():
                    if tensor is not None and id(tensor) not in tensors:
                        gradient = tensor.grad if tensor.is_leaf else None
                        tensors[id(tensor)] = (
                            tensor,
                            tensor.detach().clone(),
                            gradient,
                            tensor.requires_grad,
                        )
            slots.append((part._buffers, dict(part._buffers)))
            slots.append((part.__dict__, attributes))
    devices = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            for table, entries in slots:
                table.update(entries)
            with torch.no_grad():
                for tensor, value, gradient, was_differentiable in tensors.values():
                    if tensor.requires_grad and not was_differentiable and not tensor._is_view():
                        # Written with a value that has a gradient: no leaf any more.
                        tensor.detach_()
                    if not _same_bits(tensor, value):
                        tensor.copy_(value)
                    if tensor.is_leaf:
                        tensor.grad = gradient


# -- names ---------------------------------------------------------------------------------


def _original_name(module: nn.Module, name: str) -> str:
    """Return `name` without the stage that holds it, or the stages of stages."""
    stage, _, rest = name.partition(".")
    if stage not in getattr(module, "meta", {}).get("stages", {}):
        return name
    return _original_name(module.get_submodule(stage), rest)


def _buffers(module: nn.Module) -> dict[str, list[torch.Tensor]]:
    held: dict[str, list[torch.Tensor]] = {}
    for name, buffer in module.named_buffers(remove_duplicate=False):
        held.setdefault(_original_name(module, name), []).append(buffer)
    return held


def _classes(model: nn.Module) -> list[tuple[str, ...]]:
    """Return the names of every parameter of `model`; tied ones have several."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(_original_name(model, name))
    return [tuple(dict.fromkeys(group)) for group in names.values()]


# -- comparing -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Comparison:
    differences: list[str] = field(default_factory=list)
    max_abs_error: float = 0.0
    values_compared: bool = True

    def trees(self, what: str, expected: Any, found: Any, suffix: str = "") -> None:
        expected_leaves, expected_spec = pytree.tree_flatten_with_path(expected)
        found_leaves, found_spec = pytree.tree_flatten_with_path(found)
        if expected_spec != found_spec:
            self.max_abs_error = math.inf
            self.differences.append(
                f"the {what} has the structure {found_spec} instead of {expected_spec}"
            )
            return
        for (path, a), (_, b) in zip(expected_leaves, found_leaves, strict=True):
            self.leaves(f"{what}{pytree.keystr(path)} {suffix}".rstrip(), a, b)

    def leaves(self, where: str, expected: Any, found: Any) -> None:
        """Compare two tensors, or two values of any other type."""
        if isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor):
            self.tensors(where, expected, found)
        elif type(expected) is not type(found):
            self.differences.append(
                f"{where} is a {type(found).__name__} instead of a {type(expected).__name__}"
            )
        elif not (expected is found or expected == found or expected != expected):
            self.differences.append(f"{where} is {found!r} instead of {expected!r}")

    def tensors(
        self, where: str, expected: torch.Tensor, found: torch.Tensor, atol: float = 0.0
    ) -> None:
        for attribute in ("dtype", "shape", "layout"):
            a, b = getattr(expected, attribute), getattr(found, attribute)
            if a != b:
                if attribute == "shape":
                    a, b = tuple(a), tuple(b)
                self.max_abs_error = math.inf
                self.differences.append(f"{where} has {attribute} {b} instead of {a}")
                return
        if expected.is_meta or found.is_meta:
            self.values_compared = False
            if expected.is_meta != found.is_meta:
                self.differences.append(f"one of the two {where} is on the meta device")
            return
        a, b = expected.detach().to_dense().cpu(), found.detach().to_dense().cpu()
        same = a == b
        if a.is_floating_point() or a.is_complex():
            same |= a.isnan() & b.isnan()
        if bool(same.all()):
            return
        wide = torch.complex128 if a.is_complex() else torch.float64
        error = (a.to(wide) - b.to(wide)).abs()[~same].max().item()
        error = math.inf if math.isnan(error) else error
        self.max_abs_error = max(self.max_abs_error, error)
        if error <= atol:
            return
        self.differences.append(
            f"{where} differs in {int((~same).sum()):,} of {same.numel():,} elements, "
            f"by at most {error:.3g}"
        )


def _compare_buffers(
    comparison: _Comparison,
    expected: dict[str, list[torch.Tensor]],
    found: dict[str, list[torch.Tensor]],
    changed: set[str],
) -> None:
    for name, held in expected.items():
        if name not in found:
            # A split holds only what it uses, and under one of several names.
            if name in changed:
                comparison.differences.append(
                    f"buffer {name!r} is written by the model, but the split does not hold it"
                )
            continue
        for copy_ in found[name]:
            comparison.tensors(f"buffer {name!r}", held[0], copy_)


def _compare_gradients(
    comparison: _Comparison,
    reference: _Observation,
    found: _Observation,
    classes: list[tuple[str, ...]],
    gradient_rtol: float | None,
) -> None:
    gradients: list[tuple[str, torch.Tensor | None, torch.Tensor | None]] = []
    for names in classes:
        where = f"the gradient of parameter {' = '.join(repr(name) for name in names)}"
        gradients.append((where, _total(reference, names), _total(found, names)))
    pairs = zip(reference.input_gradients, found.input_gradients, strict=True)
    gradients.extend(
        (f"the gradient of differentiable input {index}", a, b)
        for index, (a, b) in enumerate(pairs)
    )
    # Some gradients are zero but for rounding, such as that of a bias before a softmax, so the
    # scale is common to all.
    scale = max((_largest(expected) for _, expected, _ in gradients), default=0.0)
    for where, expected, actual in gradients:
        _compare_optional(comparison, where, expected, actual, scale, gradient_rtol)


def _largest(tensor: torch.Tensor | None) -> float:
    if tensor is None or tensor.is_meta or not tensor.numel():
        return 0.0
    return float(tensor.to_dense().nan_to_num(0.0, 0.0, 0.0).abs().max())


def _compare_optional(
    comparison: _Comparison,
    where: str,
    expected: torch.Tensor | None,
    found: torch.Tensor | None,
    scale: float,
    rtol: float | None,
) -> None:
    # No gradient and a gradient of zeros are the same to every optimiser that has no momentum,
    # but not to others.
    if (expected is None) != (found is None):
        missing, present = ("split", "model") if found is None else ("model", "split")
        comparison.differences.append(f"{where} exists in the {present} but not in the {missing}")
    elif expected is not None and found is not None:
        rtol = 16 * torch.finfo(expected.dtype).eps if rtol is None else rtol
        comparison.tensors(where, expected, found, rtol * scale)


def _total(observation: _Observation, names: tuple[str, ...]) -> torch.Tensor | None:
    """Sum the gradients of all distinct parameters with one of `names`."""
    parameters: dict[int, torch.Tensor | None] = {}
    for name in names:
        parameters.update(observation.gradients.get(name, {}))
    gradients = [gradient for gradient in parameters.values() if gradient is not None]
    return sum(gradients[1:], gradients[0]) if gradients else None


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.is_meta or b.is_meta:
        return a.shape == b.shape
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != torch.strided:
        return False
    return torch.equal(
        a.detach().contiguous().view(-1).view(torch.uint8),
        b.detach().contiguous().view(-1).view(torch.uint8),
    )
