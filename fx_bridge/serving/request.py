"""Requests to a served model."""

from __future__ import annotations

from dataclasses import dataclass

from fx_bridge.files.stored_types import CACHE_TYPES, CacheType
from solver import PartitionError
from solver.model.checks import check_choice, check_natural, check_positive, only_given


@dataclass(frozen=True, slots=True)
class Request:
    """A batch of sequences, each with a prompt and generated tokens.

    Parameters
    ----------
    batch : int
        Sequences that are served together, all at one position.
    context : int
        Positions of a sequence; maximised by the objective ``context``.
    prompt : int
        Tokens of the prompt.
    generate : int
        Tokens after the prompt.
    chunk : int, optional
        Most tokens of the prompt in one call; None is all of them.
    cache_type : str, optional
        Type in which keys and values are stored, one of ``CACHE_TYPES`` in
        :mod:`fx_bridge.files.stored_types`; None is that of the model.

    Raises
    ------
    PartitionError
        If a number is not positive, or a prompt and its tokens do not fit the context.

    Examples
    --------
    >>> Request(prompt=700, chunk=512).calls
    {512: 1, 188: 1}
    """

    batch: int = 1
    context: int = 4096
    prompt: int = 512
    generate: int = 128
    chunk: int | None = None
    cache_type: CacheType | None = None
    __repr__ = only_given

    def __post_init__(self) -> None:
        for name in ("batch", "context", "prompt"):
            check_positive(getattr(self, name), name)
        check_natural(self.generate, "generate")
        if self.chunk is not None:
            check_positive(self.chunk, "chunk")
        if self.cache_type is not None:
            check_choice(self.cache_type, CACHE_TYPES, "cache_type")
        if self.prompt + self.generate > self.context:
            raise PartitionError(
                f"a prompt of {self.prompt} and {self.generate} more tokens do not fit a context "
                f"of {self.context}; write a context of at least {self.prompt + self.generate}"
            )

    @property
    def calls(self) -> dict[int, int]:
        """Number of calls for a prompt, by their number of tokens; the largest calls first."""
        whole = min(self.chunk or self.prompt, self.prompt)
        found = {whole: self.prompt // whole}
        if rest := self.prompt % whole:
            found[rest] = 1
        return found


def phase_of(tokens: int) -> str:
    """Return the name of the phase of calls with some tokens."""
    return f"{tokens} tokens" if tokens > 1 else "1 token"
