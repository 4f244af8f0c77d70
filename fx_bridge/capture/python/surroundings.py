"""Queries of forward to its surroundings, whose answers decide the captured branch.

``if torch.is_grad_enabled()``, ``x.requires_grad`` or ``x.is_contiguous()`` leaves no operator.
Settings that forward does not query may differ in later calls, and often do: a model is captured
with gradients and evaluated without. So the queries of a model's own code are recorded during the
trace. Those of torch's functions are not.
"""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from fx_bridge.python_state.source_files import is_foreign

GRADIENTS: Final = "requires_grad of tensors"
STRIDES: Final = "strides of inputs"
GRAD_MODE: Final = "torch.is_grad_enabled()"

_FUNCTIONS: Final = (
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "get_default_dtype",
    "get_default_device",
    "are_deterministic_algorithms_enabled",
    "is_deterministic_algorithms_warn_only_enabled",
    "get_deterministic_debug_mode",
    "get_float32_matmul_precision",
    "get_num_threads",
    "is_anomaly_enabled",
    "is_autocast_cache_enabled",
    "backends.cuda.flash_sdp_enabled",
    "backends.cuda.mem_efficient_sdp_enabled",
    "backends.cuda.math_sdp_enabled",
    "backends.cuda.cudnn_sdp_enabled",
    "backends.mha.get_fastpath_enabled",
)
"""Queries without arguments, by their paths in torch."""
_PUBLIC: Final = ("torch._C",)
"""Modules of torch from which a model's own code may call these functions too."""
_ANSWERS: ContextVar[Mapping[str, Any]] = ContextVar("answers", default=MappingProxyType({}))
_OF_GRADIENTS: Final = ("requires_grad", "is_leaf", "grad", "grad_fn", "retains_grad", "output_nr")
_OF_STRIDES: Final = (
    *("stride", "is_contiguous", "storage_offset", "dim_order"),
    *("is_conj", "is_neg", "is_inference"),
)
_WRAPPERS: Final = tuple(
    str(Path(torch.__file__).parent / n) for n in ("overrides.py", "_tensor.py")
)


def _is_own_code() -> bool:
    """Return True if the model's own code made the query that called this."""
    frame: Any = sys._getframe(2)
    # Modes, and torch's wrappers of methods, pass a query on.
    while frame is not None and (
        frame.f_code.co_name == "__torch_function__" or frame.f_code.co_filename in _WRAPPERS
    ):
        frame = frame.f_back
    return frame is not None and not is_foreign(frame.f_code.co_filename)


@contextlib.contextmanager
def answering(answers: Mapping[str, Any]) -> Iterator[None]:
    """Answer the queries of blocks of :func:`noted_queries` by `answers`."""
    token = _ANSWERS.set(answers)
    try:
        yield
    finally:
        _ANSWERS.reset(token)


@contextlib.contextmanager
def noted_queries() -> Iterator[set[str]]:
    """Collect the queries of Python code in the block, but for the code of torch."""
    asked: set[str] = set()
    # ``from torch import is_grad_enabled`` binds the function in another module.
    tables = [
        vars(module)
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and (name in _PUBLIC or not name.startswith("torch."))
    ]
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    for path in _FUNCTIONS:
        owner, _, name = path.rpartition(".")
        home = vars(_at(owner))
        original = home[name]
        answer = _noting(path, original, asked)
        for table in (home, *tables):
            if table.get(name) is original:
                replaced.append((table, name, original))
                table[name] = answer
    try:
        with _OfTensors(asked):
            yield asked
    finally:
        for table, name, original in replaced:
            table[name] = original


def _at(path: str) -> Any:
    return operator.attrgetter(path)(torch) if path else torch


def _noting(path: str, original: Callable[[], Any], asked: set[str]) -> Callable[[], Any]:
    query, around, answers = f"torch.{path}()", original(), _ANSWERS.get()

    def answer() -> Any:
        found = original()
        if not _is_own_code():
            return found
        asked.add(query)
        # Within a region of forward, the answer is that of the region.
        return answers.get(query, found) if found == around else found

    # Dynamo traces conditions in forward, and knows only the original function.
    answer._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return answer


class _OfTensors(TorchFunctionMode):
    def __init__(self, asked: set[str]) -> None:
        super().__init__()
        self.asked = asked

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        query = STRIDES if name in _OF_STRIDES else ""
        if name == "__get__" and getattr(func.__self__, "__name__", "") in _OF_GRADIENTS:
            query = GRADIENTS
        if query and _is_own_code():
            self.asked.add(query)
        return func(*args, **(kwargs or {}))


def answers_now(
    queries: Collection[str], inputs: Sequence[Any], weights: Mapping[str, torch.Tensor]
) -> dict[str, Any]:
    """Return the present answers to queries, given the values of placeholders and the weights."""
    tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
    found: dict[str, Any] = {}
    for query in queries:
        if query == STRIDES:
            found[query] = tuple(map(_layout, tensors))
        elif query == GRADIENTS:
            # Results have gradients if any of these have.
            own = tuple((t.requires_grad, t.is_leaf, t.is_leaf and t.grad is None) for t in tensors)
            trained = frozenset(name for name, each in weights.items() if each.requires_grad)
            found[query] = (torch.is_grad_enabled(), own, trained)
        else:
            found[query] = _at(query.removeprefix("torch.").removesuffix("()"))()
    return found


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided:
        return (tensor.layout,)
    flags = tensor.is_conj(), tensor.is_neg(), tensor.is_inference()
    return tensor.stride(), tensor.storage_offset(), flags
