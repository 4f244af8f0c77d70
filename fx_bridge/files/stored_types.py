"""Types in which weights and caches are stored: those of ggml, and those of checkpoints.

A type of ggml is one of ``STORED`` in :mod:`fx_bridge.files.gguf_header`. A checkpoint of
Hugging Face stores the weights of linear layers in another type, and everything else as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal, get_args

from fx_bridge.files.gguf_header import STORED
from solver import PartitionError
from solver.model.text import shown


@dataclass(frozen=True, slots=True)
class StoredType:
    """A type whose entries are stored in blocks.

    Attributes
    ----------
    entries, block_bytes : int
        Of a block.
    is_ggml : bool
        True if llama.cpp stores weights so: nearly all of them.
    larger : str
        Type of the matrices that a mixture stores in more bits; empty without.
    """

    name: str
    entries: int
    block_bytes: int
    is_ggml: bool = True
    larger: str = ""

    def size_bytes(self, elements: int) -> int:
        """Return the bytes of a tensor, in whole blocks."""
        return -(-elements // self.entries) * self.block_bytes


GGML: Final[Mapping[str, StoredType]] = MappingProxyType(
    {name: StoredType(name, entries, size) for name, entries, size in STORED.values()}
)
_CHECKPOINTS: Final[Mapping[str, StoredType]] = {
    found.name: found
    for found in (
        # One byte an entry, with scales that are one number for a row or a tensor.
        StoredType("fp8", 1, 1, is_ggml=False),
        StoredType("int8", 1, 1, is_ggml=False),
        # Groups of 128 with a scale of 16 bits and a zero of 4.
        StoredType("gptq", 256, 133, is_ggml=False),
        StoredType("awq", 256, 133, is_ggml=False),
        # Blocks of 64 with a scale of 32 bits (bitsandbytes without double quantisation).
        StoredType("nf4", 64, 36, is_ggml=False),
    )
}
_MIXTURES: Final[Mapping[str, StoredType]] = {
    f"{name}_M": replace(GGML[name], name=f"{name}_M", larger="Q6_K") for name in ("Q4_K", "Q5_K")
}
_SHORT: Final = {"q4": "Q4_0", "q5": "Q5_0", "q6": "Q6_K", "q8": "Q8_0"}
_NO_WEIGHTS: Final = ("I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K")
"""Types of ggml for indices and for values on their way."""
WEIGHT_TYPES: Final = (
    *(*_SHORT, *_CHECKPOINTS, *_MIXTURES),
    *(name for name in GGML if name not in _NO_WEIGHTS),
)
"""Names that :func:`weight_type` takes."""
CacheType = Literal["f16", "bf16", "f32", "fp8", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
CACHE_TYPES: Final[tuple[CacheType, ...]] = get_args(CacheType)
"""Types of the entries of a cache: those of llama.cpp, and fp8, of vLLM and SGLang."""


def weight_type(text: str) -> StoredType:
    """Return the type of weights that `text` names, in any case.

    Raises
    ------
    PartitionError
        If it is unknown.
    """
    name = _SHORT.get(text.lower(), text)
    found = _CHECKPOINTS.get(name.lower()) or {**GGML, **_MIXTURES}.get(name.upper())
    if found is None or found.name in _NO_WEIGHTS:
        raise PartitionError(
            f"no weights are of type {shown(text)}; write one of {', '.join(WEIGHT_TYPES)}"
        )
    return found


def cache_type(name: str) -> StoredType:
    """Return the type of the name of one of `CACHE_TYPES`."""
    return _CHECKPOINTS.get(name) or GGML[name.upper()]
