"""Types in which weights and caches are stored: those of ggml, and those of checkpoints.

A type of ggml holds nearly all weights. A checkpoint of Hugging Face stores those of linear layers
in another type, and everything else as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final, Literal, NamedTuple, get_args

from solver import PartitionError
from solver.model.text import shown


class StoredType(NamedTuple):
    """A type with the entries of a block, and its bytes."""

    name: str
    entries: int
    block_bytes: int

    @property
    def entry_bytes(self) -> Fraction:
        """Bytes of an entry."""
        return Fraction(self.block_bytes, self.entries)

    def size_bytes(self, elements: int) -> int:
        """Return the bytes of a tensor, in whole blocks."""
        return -(-elements // self.entries) * self.block_bytes


GGML_NUMBERS: Final[Mapping[int, StoredType]] = {number: StoredType(*own) for number, own in {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4),
    27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}.items()}  # fmt: skip
"""By the number in a GGUF file."""
GGML: Final[Mapping[str, StoredType]] = {own.name: own for own in GGML_NUMBERS.values()}
CHECKPOINTS: Final[Mapping[str, StoredType]] = {
    # One byte an entry; the scales of rows, tensors or large blocks are left out.
    **{name: StoredType(name, 1, 1) for name in ("fp8", "int8")},
    # Groups of 128 in 4 bits with a scale of 16 bits and a zero of 4.
    **{name: StoredType(name, 256, 133) for name in ("gptq", "awq")},
    # Blocks of 64 in 4 bits with a scale of 32 (bitsandbytes without double quantisation).
    "nf4": StoredType("nf4", 64, 36),
}
MIXTURES: Final[Mapping[str, StoredType]] = {
    f"{name}_M": GGML[name]._replace(name=f"{name}_M") for name in ("Q4_K", "Q5_K")
}
"""Types of ggml of which some matrices are in Q6_K."""
_SHORT: Final = {"q4": "Q4_0", "q5": "Q5_0", "q6": "Q6_K", "q8": "Q8_0"}
_NO_WEIGHTS: Final = ("I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K")
"""Types of ggml for indices and for values on their way."""
_WEIGHTS: Final = {
    name: own
    for name, own in {**CHECKPOINTS, **MIXTURES, **GGML}.items()
    if name not in _NO_WEIGHTS
}
CacheType = Literal["f16", "bf16", "f32", "fp8", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
CACHE_TYPES: Final[tuple[CacheType, ...]] = get_args(CacheType)
"""Types of the entries of a cache: those of llama.cpp, and fp8, of vLLM and SGLang."""
DEFAULT_CACHE_TYPE: Final = "f16"
"""That of llama.cpp."""
GGML_CACHE_TYPES: Final = tuple(name for name in CACHE_TYPES if name not in CHECKPOINTS)


def weight_type(text: str) -> StoredType:
    """Return the type of weights that `text` names, in any case; else raise PartitionError."""
    name = _SHORT.get(text.lower(), text)
    found = _WEIGHTS.get(name.lower(), _WEIGHTS.get(name.upper()))
    if found is None:
        raise PartitionError(
            f"no weights are of type {shown(text)}; write one of {', '.join([*_SHORT, *_WEIGHTS])}"
        )
    return found


def cache_type(name: str) -> StoredType:
    """Return the type of one of `CACHE_TYPES`."""
    return CHECKPOINTS.get(name) or GGML[name.upper()]
