"""Bytes of the weights of a model as its files have them, or as a type would store them.

Both are by the names of parameters, for :meth:`fx_bridge.CapturedGraph.with_weight_bytes`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import nn

from fx_bridge.files.mapped import StoredTensor
from fx_bridge.files.stored_types import CHECKPOINTS, GGML, MIXTURES, StoredType
from fx_bridge.storages.tensor_subclasses import is_wrapper
from solver import PartitionError
from solver.model.text import shown

_PLAIN: Final = ("F64", "F32", "F16", "BF16")
"""Types whose entries are loaded in the type of the model."""
_ROUTERS: Final = ("gate", "router", "shared_expert_gate")
_LARGER: Final = re.compile(r"\.(\d+)\..*\b(?:v_proj|down_proj|fc2|mlp\.c_proj)$")
_FALLBACK: Final = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
_COARSE: Final = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS")


# -- files ---------------------------------------------------------------------------------


def stored_bytes(model: Any, tensors: Iterable[StoredTensor]) -> dict[str, int]:
    """Return the bytes of the weights of a model of transformers, given the tensors of its files.

    Quantised tensors have their bytes in the file, and what quantisation adds to a weight, such as
    ``q_proj.scales`` or ``q_proj.weight.absmax``, counts with it. Tensors of 16, 32 and 64 bits are
    loaded in the type of the model. What transformers would not load, such as layers for the
    prediction of several tokens, does not count.

    `model` is of the configuration beside the files; its weights may be on the meta device. A
    weight without a tensor, or with one of another size, is refused, and files of which most bytes
    are of no weight.

    Names are mapped as transformers does when it loads
    (``transformers.core_model_loading.rename_source_key``), so that experts in one tensor have the
    bytes of all that are stored apart.
    """
    state: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)
    weights_of, name = _Renaming(model, state), type(model).__name__
    found: Counter[str] = Counter()
    elements: Counter[str] = Counter()
    packed: set[str] = set()
    unread_bytes = 0
    for tensor in tensors:
        weights, is_whole = weights_of(tensor.name)
        unread_bytes += 0 if weights else tensor.size_bytes
        together = sum(state[weight].numel() for weight in weights)
        for weight in weights:
            size = state[weight].numel()
            if is_whole and tensor.type in _PLAIN:
                own = tensor.elements * size // together
                elements[weight] += own
                found[weight] += own * state[weight].element_size()
            else:
                packed.add(weight)
                found[weight] += tensor.size_bytes * size // together
    known = {id(state[weight]) for weight in found}
    missing = [weight for weight, tensor in model.named_parameters() if id(tensor) not in known]
    wrong = [w for w in elements if w not in packed and elements[w] != state[w].numel()]
    why = ""
    if missing:
        why = f"no file has a tensor for {shown(missing[0])}, a weight of {name}"
    elif unread_bytes > found.total():
        why = f"most bytes of the files are of no weight of {name}"
    elif wrong:
        count, own = elements[wrong[0]], state[wrong[0]].numel()
        why = f"{shown(wrong[0])} has {count} entries in the files, and {own} in {name}"
    if why:
        raise PartitionError(f"{why}; they belong to another configuration")
    return dict(found)


class _Renaming:
    """The weights of a model that a tensor of a file is part of."""

    def __init__(self, model: Any, state: dict[str, torch.Tensor]) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming

        mapping = get_model_conversion_mapping(model)
        self._state, self._prefix = state, model.base_model_prefix
        self._renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
        self._converters = [each for each in mapping if isinstance(each, WeightConverter)]

    def __call__(self, name: str) -> tuple[Sequence[str], bool]:
        """Return names of weights, and whether the tensor is no more than them."""
        for number, candidate in enumerate(_names_of_weight(name)):
            for weights in (self._renamed(candidate), (candidate,)):
                if all(weight in self._state for weight in weights):
                    return weights, number == 0
        return (), False

    def _renamed(self, name: str) -> Sequence[str]:
        from transformers.core_model_loading import rename_source_key

        weight, source = rename_source_key(
            name, self._renamings, self._converters, self._prefix, self._state
        )
        for each in self._converters if source is not None else ():
            if source in each.source_patterns:
                # Named is the first of several weights that are stored together.
                first, *_ = each.target_patterns
                return [weight.replace(first, own) for own in each.target_patterns]
        return [weight]


def _names_of_weight(name: str) -> Iterator[str]:
    """Yield the names that the weight of a tensor may have, its own first.

    ``x.qweight``, ``x.weight_scale`` and ``x.weight.quant_state.nf4`` are of ``x.weight``, and
    ``experts.down_proj_blocks`` is of ``experts.down_proj``.
    """
    yield name
    yield re.sub(r"_[a-z]+$", "", name)
    parts = name.split(".")
    for count in range(len(parts) - 1, max(len(parts) - 4, 0), -1):
        yield ".".join(parts[:count])
        yield ".".join((*parts[:count], "weight"))


# -- types ---------------------------------------------------------------------------------


def bytes_as(model: Any, stored: StoredType) -> dict[str, int]:
    """Return the bytes of every weight of a model of transformers, stored as a type.

    The type is of :func:`fx_bridge.files.stored_types.weight_type`. Another model is refused, and
    weights that are quantised already.

    A type of ggml holds the matrices of linear layers and experts, and the embedding. The head, and
    an embedding that is the head, are Q6_K, or Q8_0 with Q8_0, or Q5_K with types below three bits;
    floating types hold them too. Where a row has no whole number of blocks, the type is the next
    larger one of 32 entries, else F16. Vectors and routers are F32. That is
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
    found: dict[str, int] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for name, weight in module.named_parameters(recurse=False):
            full = f"{path}.{name}".lstrip(".")
            if is_wrapper(weight) or not weight.is_floating_point():
                raise PartitionError(f"{shown(full)} is quantised already; leave --weights out")
            own = _type_of(model, module, weight, full.removesuffix(".weight"), stored)
            found[full] = weight.nbytes if own is None else own.size_bytes(weight.numel())
    return found


def _type_of(
    model: Any, module: nn.Module, weight: torch.Tensor, name: str, stored: StoredType
) -> StoredType | None:
    """Return the type of a weight by its name without ``.weight``; None for that of the model."""
    is_linear = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
    is_matrix = weight.dim() == 2 and is_linear and name.rpartition(".")[2] not in _ROUTERS
    is_matrix |= weight.dim() == 3 and not isinstance(module, nn.Conv1d)
    head = model.get_output_embeddings()
    if stored.name in CHECKPOINTS:
        return stored if is_matrix and module is not head else None
    own = GGML["F32"]
    if head is not None and weight is head.weight:
        is_kept = stored.entries == 1 or stored.name == "Q8_0"
        own = stored if is_kept else GGML["Q5_K" if stored.name in _COARSE else "Q6_K"]
    elif is_matrix or module is model.get_input_embeddings():
        layers = model.config.get_text_config().num_hidden_layers
        own = GGML["Q6_K"] if stored.name in MIXTURES and _takes_more(name, layers) else stored
    row = weight.shape[-1]
    if row % own.entries:
        coarse = "IQ4_NL" if own.name.startswith("IQ") else "Q4_0"
        own = GGML[_FALLBACK.get(own.name.removesuffix("_M"), coarse)]
    return GGML["F16"] if row % own.entries else own


def _takes_more(name: str, layers: int) -> bool:
    """Return True for a matrix that a mixture stores in more bits."""
    found = _LARGER.search(name)
    if found is None:
        return False
    number, eighth = int(found[1]), layers // 8
    return number < eighth or number >= 7 * layers // 8 or (number - eighth) % 3 == 2
