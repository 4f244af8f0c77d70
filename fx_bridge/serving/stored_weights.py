"""Bytes of the weights of a model as its files have them, or as a type would store them.

Both are by the names of parameters, for :meth:`fx_bridge.CapturedGraph.with_weight_bytes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from fx_bridge.files.gguf_header import StoredTensor
from fx_bridge.files.stored_types import GGML, StoredType
from fx_bridge.storages.tensor_subclasses import is_wrapper
from solver import PartitionError
from solver.model.text import shown

_PLAIN: Final = ("F64", "F32", "F16", "BF16")
"""Types whose entries are loaded in the type of the model."""
_ROUTERS: Final = ("gate", "router", "shared_expert_gate")
_LARGER: Final = re.compile(r"\b(v_proj|down_proj|fc2|mlp\.c_proj)$")
_FALLBACK: Final = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
_COARSE: Final = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS")


# -- files ---------------------------------------------------------------------------------


def stored_bytes(model: Any, tensors: Iterable[StoredTensor]) -> dict[str, int]:
    """Return the bytes of every weight of a model of transformers, of tensors in its files.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Of the configuration beside the files; its weights may be on the meta device.
    tensors : iterable of StoredTensor
        Of all files. A tensor that quantisation adds to a weight, such as ``q_proj.scales`` or
        ``q_proj.weight.absmax``, counts with it. Tensors that transformers would not load, such as
        layers for the prediction of several tokens, do not count.

    Returns
    -------
    dict of str to int
        Quantised tensors have their bytes in the file. Tensors of 16, 32 and 64 bits are loaded in
        the type of the model.

    Raises
    ------
    PartitionError
        If a weight has no tensor, or one of another size, or most bytes are of no weight.

    Notes
    -----
    Names are mapped as transformers does when it loads
    (``transformers.core_model_loading.rename_source_key``), so that experts in one tensor have the
    bytes of all that are stored apart.
    """
    state: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)
    targets_of = _Renaming(model, state)
    found: dict[str, int] = {}
    elements: dict[str, int] = {}
    packed: set[str] = set()
    unread: dict[str, int] = {}
    for tensor in sorted(tensors, key=lambda each: each.name):
        targets, is_whole = targets_of(tensor.name)
        if not targets:
            unread[tensor.name] = tensor.size_bytes
        sizes = [state[target].numel() for target in targets]
        for target, size in zip(targets, sizes, strict=True):
            own = tensor.elements * size // sum(sizes)
            if is_whole and tensor.type in _PLAIN:
                elements[target] = elements.get(target, 0) + own
                own_bytes = own * state[target].element_size()
            else:
                packed.add(target)
                own_bytes = tensor.size_bytes * size // sum(sizes)
            found[target] = found.get(target, 0) + own_bytes
    _check_complete(model, found, unread)
    for target, count in elements.items():
        if target not in packed and count != state[target].numel():
            raise PartitionError(
                f"{shown(target)} has {count} entries in the files, and {state[target].numel()} in "
                f"a {type(model).__name__} of this configuration; they belong to another one"
            )
    return found


def _check_complete(model: Any, found: Mapping[str, int], unread: Mapping[str, int]) -> None:
    """Raise PartitionError if a weight was not found, or most bytes are of no weight."""
    state, name = model.state_dict(keep_vars=True), type(model).__name__
    tied = {id(state[weight]) for weight in found}
    for weight, _ in model.named_parameters():
        if id(state[weight]) not in tied:
            raise PartitionError(
                f"no file has a tensor for {shown(weight)}, a weight of {name}; they belong to "
                "another configuration"
            )
    if sum(unread.values()) > sum(found.values()):
        raise PartitionError(
            f"most bytes of the files are of no weight of a {name}, such as "
            f"{shown(max(unread, key=unread.__getitem__))}; they belong to another configuration"
        )


class _Renaming:
    """The weights of a model that a tensor of a file is part of."""

    def __init__(self, model: Any, state: dict[str, torch.Tensor]) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming

        mapping = get_model_conversion_mapping(model)
        self._state, self._prefix = state, model.base_model_prefix
        self._renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
        self._converters = [each for each in mapping if isinstance(each, WeightConverter)]
        self._targets_of = {
            source: each.target_patterns
            for each in self._converters
            for source in each.source_patterns
        }

    def __call__(self, name: str) -> tuple[Sequence[str], bool]:
        """Return names of weights, and whether the tensor is no more than them."""
        for number, candidate in enumerate(_names_of_weight(name)):
            for targets in (self._renamed(candidate), (candidate,)):
                if targets and all(target in self._state for target in targets):
                    return targets, number == 0
        return (), False

    def _renamed(self, name: str) -> Sequence[str]:
        from transformers.core_model_loading import rename_source_key

        target, source = rename_source_key(
            name, self._renamings, self._converters, self._prefix, self._state
        )
        patterns = self._targets_of.get(source, ())
        # The first pattern names the first of several weights that are stored together.
        return [target.replace(patterns[0], pattern) for pattern in patterns] or [target]


def _names_of_weight(name: str) -> Iterator[str]:
    """Yield the names that the weight of a tensor may have, its own first.

    ``x.qweight``, ``x.weight_scale`` and ``x.weight.quant_state.nf4`` are of ``x.weight``, and
    ``experts.down_proj_blocks`` is of ``experts.down_proj``.
    """
    yield name
    yield re.sub(r"_[a-z]+$", "", name)
    parts = name.split(".")
    for count in range(len(parts) - 1, max(len(parts) - 4, 0), -1):
        module = ".".join(parts[:count])
        yield module
        yield f"{module}.weight"


# -- types ---------------------------------------------------------------------------------


def bytes_as(model: Any, stored: StoredType) -> dict[str, int]:
    """Return the bytes of every weight of a model of transformers, stored as a type.

    Parameters
    ----------
    stored : StoredType
        Of :func:`fx_bridge.files.stored_types.weight_type`.

    Raises
    ------
    PartitionError
        If weights are quantised already.

    Notes
    -----
    A type of ggml holds the matrices of linear layers and experts, and the embedding. The head,
    and an embedding that is the head, are Q6_K, or Q8_0 with Q8_0, or Q5_K with types below three
    bits; floating types hold them too. Where a row has no whole number of blocks, the type is the
    next larger one of 32 entries, else F16. Vectors and routers are F32. That is
    ``llama_tensor_get_type`` of llama.cpp (``src/llama-quant.cpp``, 2026). Q4_K_M and Q5_K_M store
    values of attention and the last matrix of the feed-forward half in Q6_K in the first and last
    eighth of the layers and in each third layer between. Exceptions for models of 70B, of eight
    experts and of Falcon are left out.

    A type of checkpoints holds the matrices of linear layers and experts; embedding, head, routers
    and vectors stay in the type of the model, as AutoGPTQ, AutoAWQ, bitsandbytes and llm-compressor
    leave them by default.
    """
    if not hasattr(model, "get_output_embeddings"):
        raise PartitionError(
            f"{type(model).__name__} is no language model of transformers; leave --weights out"
        )
    store = _GgmlRule(model, stored).size_bytes if stored.is_ggml else _of_checkpoint(model, stored)
    found: dict[str, int] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for name, weight in module.named_parameters(recurse=False):
            if is_wrapper(weight) or not weight.is_floating_point():
                raise PartitionError(
                    f"{shown(f'{path}.{name}')} is quantised already; leave --weights out"
                )
            full = f"{path}.{name}".lstrip(".")
            found[full] = store(full.removesuffix(".weight"), module, weight)
    return found


_Rule = Callable[[str, nn.Module, torch.Tensor], int]


def _of_checkpoint(model: Any, stored: StoredType) -> _Rule:
    head = model.get_output_embeddings()

    def size_bytes(name: str, module: nn.Module, weight: torch.Tensor) -> int:
        if module is head or not _is_matrix(name, module, weight):
            return weight.nbytes
        return stored.size_bytes(weight.numel())

    return size_bytes


class _GgmlRule:
    """Bytes of weights as llama.cpp stores them with one type."""

    def __init__(self, model: Any, stored: StoredType) -> None:
        self._stored = stored
        self._embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        self._head = None if head is None else head.weight
        self._layers = int(model.config.get_text_config().num_hidden_layers)
        self._head_type = GGML["Q6_K"]
        if stored.entries == 1 or stored.name == "Q8_0":
            self._head_type = stored
        elif stored.name in _COARSE:
            self._head_type = GGML["Q5_K"]

    def size_bytes(self, name: str, module: nn.Module, weight: torch.Tensor) -> int:
        """Return the bytes of a weight of a module, by its name without ``.weight``."""
        stored = GGML["F32"]
        if weight is self._head:
            stored = self._head_type
        elif module is self._embedding or _is_matrix(name, module, weight):
            stored = GGML[self._stored.larger] if self._takes_more(name) else self._stored
        return _fitting(stored, weight.shape[-1]).size_bytes(weight.numel())

    def _takes_more(self, name: str) -> bool:
        """Return True for a matrix that a mixture stores in more bits."""
        layer = re.search(r"\.(\d+)\.", name)
        if not self._stored.larger or layer is None or not _LARGER.search(name):
            return False
        number, eighth = int(layer[1]), self._layers // 8
        is_outer = number < eighth or number >= 7 * self._layers // 8
        return is_outer or (number - eighth) % 3 == 2


def _fitting(stored: StoredType, row: int) -> StoredType:
    """Return a type whose blocks fill a row."""
    if row % stored.entries == 0:
        return stored
    larger = _FALLBACK.get(
        stored.name.removesuffix("_M"), "IQ4_NL" if stored.name.startswith("IQ") else "Q4_0"
    )
    return GGML["F16" if row % GGML[larger].entries else larger]


def _is_matrix(name: str, module: nn.Module, weight: torch.Tensor) -> bool:
    """Return True for a matrix of a linear layer, or those of experts."""
    if weight.dim() == 3:
        return not isinstance(module, nn.Conv1d)
    is_linear = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
    return weight.dim() == 2 and is_linear and name.rpartition(".")[2] not in _ROUTERS
