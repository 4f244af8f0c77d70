"""The ways to capture a module, tried in turn until one gives its graph.

An error that no other way can avoid ends the search at once. Otherwise the model is run: a model
that does not run cannot be captured, and one that runs only without gradients is captured without.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from fx_bridge.capture.model.messages import (
    describe,
    failure,
    is_data_dependent,
    is_final,
    quiet,
    refusal_in,
    remedy,
)
from fx_bridge.capture.model.trial import kept_tensors, own_input
from fx_bridge.capture.python.autograd_functions import to_modules
from fx_bridge.capture.python.custom_backward import mark_lost, own_backward
from fx_bridge.capture.python.held_tensors import writes_to
from fx_bridge.capture.python.surroundings import noted_queries
from fx_bridge.capture.python.weight_casts import casting_weights_once
from fx_bridge.capture.tracers.export import export
from fx_bridge.capture.tracers.make_fx import trace_operators
from fx_bridge.capture.tracers.repeated_functions import RepeatedFunctions
from fx_bridge.equivalence.calls import first_line
from fx_bridge.equivalence.check import check_equivalence
from fx_bridge.python_state.restoration import PythonState
from solver import PartitionError

Capture = Literal["export", "make_fx", "graph_module", "exported_program"]
"""How a graph was captured."""

_SHOWN: Final = 2
"""Most differences that a message names."""


Exported = tuple[fx.GraphModule, str]
"""A graph, and remarks for its user."""


class Captured(NamedTuple):
    """A graph of a module, the way it was captured, and deviations from the request."""

    module: fx.GraphModule
    how: Capture
    note: str
    asked: frozenset[str]
    """Queries of forward to its surroundings."""


class DiffersError(Exception):
    """The graph computes something else than its model; the message has the differences."""


@dataclass
class Attempt:
    """A capture in progress: the model, its example inputs, and the failures of earlier ways.

    `constants` has the values of fixed inputs, by path; other options are as
    :func:`fx_bridge.capture` takes them.
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic_shapes: Any
    constants: Mapping[str, torch.Tensor]
    check: bool
    failures: dict[str, str] = field(default_factory=dict)
    """Descriptions of failed ways, by the first line of the error: repeated errors count once."""
    causes: list[Exception] = field(default_factory=list)  # the errors themselves, in order
    differentiated: set[str] = field(default_factory=set)
    """Names of the differentiating functions that forward called."""
    prefix: str = ""  # of the note
    state: PythonState = field(init=False)  # of the model, which every way restores

    def __post_init__(self) -> None:
        # Its import, which a capture needs, changes the environment.
        importlib.import_module("torch._dynamo.variables.misc")
        if self.check and not self.can_run:
            raise PartitionError(
                f"check=True runs {describe(self.model)}, which has no values on the meta device; "
                "leave it out, or give weights and inputs on the cpu"
            )
        self.state = PythonState(self.model, (self.args, self.kwargs))

    @functools.cached_property
    def can_run(self) -> bool:
        """True if all tensors have values: a run on the meta device proves little."""
        tensors = self.model.state_dict(keep_vars=True).values()
        leaves = [*tensors, *pytree.tree_leaves((self.args, self.kwargs))]
        return not any(isinstance(t, torch.Tensor) and t.device.type == "meta" for t in leaves)

    @casting_weights_once()
    def export(self, *, aware: bool = True, repeats: RepeatedFunctions | None = None) -> Exported:
        """Export by torch.export."""
        call = self.model, self.args, self.kwargs, self.dynamic_shapes
        return export(*call, constants=self.constants, aware=aware, repeats=repeats)

    @casting_weights_once()
    def trace_operators(self) -> Exported:
        """Record the operators that run, backward passes included."""
        return trace_operators(self.model, self.args, self.kwargs, self.constants)

    def tried(self, how: Capture, way: Callable[[], Exported]) -> Captured | None:
        """Try one way; record its error and return None if it fails."""
        try:
            watched = self.state.during(watch_inputs=how == "export")
            # make_fx runs on real tensors.
            real = how == "make_fx" and self.can_run
            kept = kept_tensors(self.model) if real else contextlib.nullcontext()
            with (
                quiet(),
                watched as changes,
                own_backward(self.model, self.differentiated) as lost,
                noted_queries() as asked,
                kept,
            ):
                made, note = changes.run(way)
                # Raises if the generated code does not compile.
                assert made.code
                to_modules(made)
            if self.check:
                self._compare(made)
        except MemoryError:
            raise
        except Exception as error:
            if refusal := refusal_in(error):
                raise refusal from None
            text = f"{how} failed {failure(error, self.model)}"
            if isinstance(error, DiffersError):
                text = f"{how} computes something else: {error}"
            self.failures.setdefault(first_line(error), text)
            self.causes.append(error)
            return None
        mark_lost(made, lost.lost)
        notes = (self.prefix, *self.failures.values(), note, lost.note)
        notes += (changes.note(functools.partial(writes_to, made)),)
        return Captured(made, how, "; ".join(filter(None, notes)), frozenset(asked))

    def trial_error(self) -> Exception | None:
        """Call the model on copies of the inputs; return its error, or None if it runs.

        The model, the state that it reaches and all random states are restored.
        """
        with quiet(), self.state.during() as changes, kept_tensors(self.model):
            try:
                args, kwargs = pytree.tree_map(own_input, (self.args, self.kwargs))
                changes.run(lambda: self.model(*args, **kwargs))
            except Exception as error:
                return error
        return None

    def forget(self) -> None:
        """Forget the failures so far."""
        self.failures.clear()
        self.causes.clear()
        self.differentiated.clear()

    def _compare(self, made: fx.GraphModule) -> None:
        trained = self.model.training and torch.is_grad_enabled()
        gradients = trained and any(each.requires_grad for each in self.model.parameters())
        report = check_equivalence(self.model, made, self.args, self.kwargs, gradients=gradients)
        if not report.equal:
            raise DiffersError(first_line(Exception("; ".join(report.differences[:_SHOWN]))))

    @property
    def explained(self) -> Exception:
        """The error to explain: the first data-dependent one, or else the first.

        A model that sees that it is traced may fail for that before it reads a value.
        """
        return next(filter(is_data_dependent, self.causes), self.causes[0])

    def refused(self, advice: str) -> PartitionError:
        """Return the error with the reasons in one line, and `advice`."""
        explained = self.failures[first_line(self.explained)]
        differing = [str(cause) for cause in self.causes if isinstance(cause, DiffersError)]
        first = self.failures[differing[0]] if differing else explained
        reasons = dict.fromkeys((first, explained))
        others = [text for text in self.failures.values() if text not in reasons]
        also = " and ".join(re.split(" failed| computes", text)[0] for text in others)
        also = f"; {also} fail{'s' if len(others) == 1 else ''} too" if others else ""
        why = "; ".join(reasons)
        return PartitionError(f"cannot capture {describe(self.model)}: {why}{also}; {advice}")


def attempt(task: Attempt) -> Captured:
    """Capture a module by the first way that gives its graph.

    Otherwise raise a PartitionError with the result of a plain run, the obstacle and the remedy.
    """
    repeats = RepeatedFunctions()
    made = task.tried("export", functools.partial(task.export, repeats=repeats))
    if made is None and repeats.writes_views:
        task.forget()
        repeats = RepeatedFunctions(views=False)
        made = task.tried("export", functools.partial(task.export, repeats=repeats))
    if made is None and repeats.copies:
        # The error may be about copied nodes.
        task.forget()
        made = task.tried("export", task.export)
    if made is not None:
        return made
    first = task.causes[0]
    runs = ""
    if task.can_run:
        own_error = task.trial_error()
        if own_error is not None:
            return _without_gradients(task, own_error)
        runs = "the model runs on these inputs, so "
    if not is_final(first):
        for how, way in [*_ways(task)]:
            made = task.tried(how, way)
            if made is not None:
                return made
    others = [cause for cause in task.causes if cause is not task.explained]
    advice = remedy([task.explained, *others], task.model, runs)
    if isinstance(task.explained, DiffersError):
        advice = "capture it without check=True if that does not matter"
    elif task.dynamic_shapes is not None and not is_final(first):
        advice = f"{runs}check dynamic_shapes"
    raise task.refused(advice) from task.explained


def _ways(task: Attempt) -> Iterator[tuple[Capture, Callable[[], Exported]]]:
    """Yield the other ways to capture a module, the likeliest first."""
    dynamic = task.dynamic_shapes is not None
    if not task.differentiated or dynamic:
        yield "export", functools.partial(task.export, aware=False)
    # make_fx knows no symbolic sizes, and cannot fix the values of tensors.
    if (task.differentiated or not task.constants) and not dynamic:
        yield "make_fx", task.trace_operators


def _without_gradients(task: Attempt, own_error: Exception) -> Captured:
    why = failure(own_error, task.model)
    if torch.is_grad_enabled():
        with torch.no_grad():
            if task.trial_error() is None:
                task.prefix = f"captured without gradients, with which the model fails {why}"
                task.forget()
                return attempt(task)
    raise PartitionError(
        f"cannot capture {describe(task.model)}: it does not run on these inputs: it fails {why}; "
        "pass inputs with which model(*args, **kwargs) runs"
    ) from own_error
