"""Import, building and capture of models, isolated from the output and exit of their code.

torch loads only when a model is built.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from solver import PartitionError

if TYPE_CHECKING:
    import torch

    from fx_bridge.capture.graph import CapturedGraph


_HF_HINT: Final = 'pip install "fxpartition[hf]"'
_SEED: Final = 0


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A module in evaluation mode, with the example inputs for its capture.

    `weight_bytes` has the bytes of weights that are stored in another type than the module's.
    """

    name: str
    module: torch.nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    weight_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def has_weights(self) -> bool:
        """True if the parameters hold numbers, so that the model can run."""
        return not any(
            tensor.is_meta for tensor in (*self.module.parameters(), *self.module.buffers())
        )


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A named model, described in one line.

    `factory` returns (module, args) or (module, args, kwargs). A model on the meta device has no
    weights: it can be planned and split, not run. `extra` is one of this distribution. As many
    `equal_devices` are derived for it; derived devices have in all `slack_permille` thousandths of
    the memory that it needs. `weight_bytes` returns the bytes of weights as stored, given the
    module.
    """

    name: str
    description: str
    factory: Callable[[], Any]
    has_weights: bool = True
    extra: str | None = None
    equal_devices: int = 4
    slack_permille: int = 1150
    weight_bytes: Callable[[Any], Mapping[str, int]] | None = None


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """Arguments of :func:`fx_bridge.capture.graph.capture`."""

    constants: tuple[str, ...] = ()
    check: bool = False


DEFAULT_CAPTURE: Final = CaptureRequest()


@contextlib.contextmanager
def others_code(what: str) -> Iterator[None]:
    """Redirect prints of foreign code to stderr, and turn its exits into errors.

    Standard output is for answers alone, which another program may read.
    """
    with contextlib.redirect_stdout(sys.stderr):
        try:
            yield
        except SystemExit as error:
            raise PartitionError(
                f"{what} calls sys.exit({error.code!r}); let it return or raise instead"
            ) from error
        except (Exception, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            # `except Exception` of a caller would miss this one.
            raise PartitionError(
                f"{what} raises {type(error).__name__} ({first_line(error)}), which is no "
                "Exception; let it raise one instead"
            ) from error


def build_model(spec: ModelSpec) -> LoadedModel:
    """Build the model of `spec` in evaluation mode, with reproducible random weights."""
    import torch

    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            with others_code(f"the factory of model {spec.name!r}"):
                loaded = _checked(spec.name, spec.factory())
                if spec.weight_bytes is None:
                    return loaded
                return _stored_as(loaded, spec.weight_bytes(loaded.module))
    except PartitionError:
        raise
    except ImportError as error:
        if spec.extra is not None:
            raise PartitionError(
                f"model {spec.name!r} needs the extra {spec.extra!r} ({error}); "
                f"install it: {_HF_HINT}"
            ) from None
        raise PartitionError(f"model {spec.name!r} cannot be built: {error}") from error
    except Exception as error:
        # A factory is the user's own code: any exception is bad input.
        raise PartitionError(
            f"model {spec.name!r} cannot be built: {type(error).__name__}: {first_line(error)}"
        ) from error


def _stored_as(loaded: LoadedModel, weight_bytes: Mapping[str, int]) -> LoadedModel:
    """Return a model with bytes of weights; those that are quantised do not train."""
    for name, weight in loaded.module.named_parameters():
        if weight_bytes.get(name, weight.nbytes) != weight.nbytes:
            weight.requires_grad_(False)
    return replace(loaded, weight_bytes=weight_bytes)


def capture_model(loaded: LoadedModel, asked: CaptureRequest = DEFAULT_CAPTURE) -> CapturedGraph:
    """Capture a model with its example inputs; PartitionError if it fails."""
    from fx_bridge.capture.graph import capture

    with others_code(f"model {loaded.name!r}"):
        captured = capture(
            loaded.module, loaded.args, loaded.kwargs, constants=asked.constants, check=asked.check
        )
    return captured.with_weight_bytes(loaded.weight_bytes)


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or empty."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")


def describe_error(error: BaseException) -> str:
    """Return an exception in one line, with its type unless it is a PartitionError."""
    text = first_line(error)
    if isinstance(error, PartitionError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _checked(name: str, made: object) -> LoadedModel:
    import torch

    want = "return (module, args) or (module, args, kwargs)"
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise PartitionError(
            f"model {name!r}: the factory returned a {type(made).__name__}; {want}"
        )
    module, args, kwargs = (*made, {})[:3]
    if not isinstance(module, torch.nn.Module):
        raise PartitionError(
            f"model {name!r}: the factory's first value is a {type(module).__name__}, "
            f"not a torch.nn.Module; {want}"
        )
    if not isinstance(args, (tuple, list)):
        raise PartitionError(
            f"model {name!r}: the factory's args are a {type(args).__name__}, not a tuple; {want}"
        )
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise PartitionError(f"model {name!r}: the factory's kwargs are not a dict; {want}")
    module.eval()
    return LoadedModel(name, module, tuple(args), dict(kwargs))


def import_named(text: str, what: str, name: str) -> Any:
    """Import the target of an import string, from the current folder too.

    In messages `what`, such as ``"model"``, is the target, and `name`, such as ``"factory"``, the
    part after the colon; that of a missing target has close matches.
    """
    module_name, _, attribute = text.partition(":")
    if not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise PartitionError(
            f"{what} {text!r} is not an import string; write package.module:{name}"
        )
    # Unlike `python -m`, a console script lacks the working directory on its path.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        with others_code(f"module {module_name}"):
            target: Any = importlib.import_module(module_name)
    except PartitionError:
        raise
    except Exception as error:
        raise PartitionError(
            f"{what} {text!r}: cannot import {module_name}: "
            f"{type(error).__name__}: {first_line(error)}; write package.module:{name}"
        ) from error
    for part in attribute.split("."):
        try:
            target = getattr(target, part)
        except Exception:  # whatever a module's own __getattr__ raises
            names = [name for name in dir(target) if not name.startswith("_")]
            close = difflib.get_close_matches(part, names, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise PartitionError(
                f"{what} {text!r}: {module_name} has no {attribute!r}{hint}"
            ) from None
    return target
