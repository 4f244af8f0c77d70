"""Options of the host, and of the types in which weights and caches are stored."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

import typer

from fx_bridge.files.stored_types import CacheType

_stored: Final = partial(typer.Option, rich_help_panel="Storage")

HostOption = Annotated[
    str | None,
    _stored(
        metavar="MEMORY",
        help="Of the host, such as 64GB or 64GB@cpu: what does not fit is streamed from it or runs "
        "there.",
    ),
]
WeightsOption = Annotated[
    str | None,
    _stored(
        metavar="TYPE",
        help="Of weights that are to be quantised: q4, q8, fp8, nf4, gptq, awq, int8, or a type of "
        "GGUF such as Q6_K; without it as in the files of a folder, or as the model has them.",
    ),
]
CacheTypeOption = Annotated[
    CacheType | None,
    _stored(
        help="Of keys and values in caches; without it that of the model, or f16 with a GGUF file."
    ),
]
KeyTypeOption = Annotated[
    CacheType | None, _stored("--cache-type-k", help="Of keys alone, with a GGUF file.")
]
ValueTypeOption = Annotated[
    CacheType | None, _stored("--cache-type-v", help="Of values alone, with a GGUF file.")
]
