"""Messages about a failed capture, in one line: place, cause and remedy."""

from __future__ import annotations

import contextlib
import io
import logging
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType

from torch import nn

from fx_bridge.equivalence.calls import first_line
from fx_bridge.python_state.source_files import is_foreign
from solver import PartitionError


def describe(model: object) -> str:
    """Return the name of a class, or of the class of an instance."""
    return model.__name__ if isinstance(model, type) else type(model).__name__


def failure(error: BaseException, model: nn.Module) -> str:
    """Return the place and cause of an error: module, last line outside torch, error."""
    place = source_place(((f, n) for f, n in traceback.walk_tb(error.__traceback__)), model)
    return f"{place} ({type(error).__name__}: {first_line(error)})".lstrip()


def refusal_in(error: BaseException | None) -> PartitionError | None:
    """Return the PartitionError in the causes of an error: torch wraps the errors of forward."""
    while error is not None and not isinstance(error, PartitionError):
        error = error.__cause__ or error.__context__
    return error


def is_data_dependent(error: BaseException) -> bool:
    """Return True if Python reads a value that the trace lacks."""
    return "DataDependent" in type(error).__name__


def is_final(error: BaseException) -> bool:
    """Return True if every way of capturing would fail with this error."""
    text = str(error)
    if is_data_dependent(error):
        # Python reads the value. A size that depends on values may be used as a size alone.
        return "(Size-like symbols: none)" in text
    return "no fake impl registered" in text or "and forward changes it" in text


def remedy(causes: Sequence[BaseException], model: nn.Module, runs: str = "") -> str:
    """Return the advice to a person after the capture of `model` failed.

    The first of `causes` is the one to explain; `runs` is the result of a plain run, as the
    beginning of a sentence, or empty if unknown.
    """
    error, text = causes[0], str(causes[0])
    if is_data_dependent(error):
        none: frozenset[str] = frozenset()
        sources = next((s for each in causes if (s := getattr(each, "sources", none))), none)
        return f"{runs}{_data_dependent(sources, _is_others(error))}"
    if "which is not a known type" in text or "Unsupported input type" in text:
        # Most often a transformers model that returns its cache.
        return (
            "let the model take and return only tensors in tuples, lists and dicts (a transformers "
            "model: use_cache=False), or register that type with torch.export.register_dataclass"
        )
    if "no fake impl registered" in text:
        return "register one with torch.library.register_fake"
    if "and forward changes it" in text:
        return "keep what forward counts in a Python number that is an argument, or in a tensor"
    devices = {tensor.device.type for tensor in model.state_dict().values()}
    if len(devices) > 1:
        # As torch.FloatTensor(...) makes them, which heeds no default device.
        return (
            f"its weights are on {' and '.join(sorted(devices))}: put all of them on one device, "
            "such as model.to('meta')"
        )
    advice = "capture the part of it that can be traced, or give an ExportedProgram of it"
    if not runs:
        return f"check that the model runs on these inputs, or {advice}"
    return f"{runs}only its capture fails; {advice}"


def _data_dependent(sources: frozenset[str], others: bool) -> str:
    inputs = sorted(source for source in sources if not source.startswith("weight "))
    reads = "that line reads a value of a tensor"
    if inputs and len(inputs) == len(sources):
        named = ", ".join(map(repr, inputs))
        return (
            f"{reads} computed from {named}: if it is the same in every call, fix it by "
            f"capture(..., constants=[{named}]); otherwise pass arguments with which forward "
            "does not read it, such as a mask"
        )
    if others:
        return (
            f"{reads} computed from inputs and weights, in another package: pass arguments or "
            "set an option of the model with which it does not, such as another implementation"
        )
    return (
        f"{reads} computed from inputs and weights: rewrite it so that it does not decide what "
        "is computed (torch.where, torch.cond)"
    )


def _is_others(error: BaseException) -> bool:
    """Return True if the last line outside torch is in an installed package."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [file for file in files if not is_foreign(file)]
    return bool(own) and "site-packages" in own[-1]


def source_place(frames: Iterable[tuple[FrameType, int]], model: nn.Module) -> str:
    """Return the innermost submodule of `model`, and the last source line outside torch.

    Such as ``"in module 'head' at model.py:12, 'return x.view(3, -1)'"``; empty if unknown. Frames
    come outermost first, with line numbers.
    """
    names = {id(module): name for name, module in model.named_modules() if name}
    module = place = ""
    for frame, line in frames:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and id(owner) in names:
            module = f"in module {names[id(owner)]!r}"
        code = frame.f_code
        if is_foreign(code.co_filename):
            continue
        summary = traceback.FrameSummary(code.co_filename, line, code.co_name)
        if summary.line:
            place = f"at {code.co_filename}:{line}, {summary.line!r}"
    return " ".join(part for part in (module, place) if part)


@contextlib.contextmanager
def refusing(model: object) -> Iterator[None]:
    """Run a capture quietly, and turn its errors into PartitionError."""
    try:
        with quiet():
            yield
    except (PartitionError, MemoryError):
        raise
    except Exception as error:
        where = failure(error, model if isinstance(model, nn.Module) else nn.Module())
        raise PartitionError(
            f"cannot capture {describe(model)}: it fails {where}; capture the part of it that can "
            "be traced, or give an ExportedProgram of it"
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep torch from logging and printing the errors of a failed attempt."""
    before = logging.root.manager.disable
    # Torch installs its handlers late, so there is none to filter yet.
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            # With warnings as errors, a warning of torch would pass for a failure.
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
