"""What a device holds at its peak, by name: the evaluator's number, taken apart."""

from __future__ import annotations

from typing import Literal, NamedTuple

AliveKind = Literal[
    "weight", "received", "value", "saved", "earlier", "gradient", "sent", "workspace"
]


class Alive(NamedTuple):
    """Something that a device holds at its peak.

    Attributes
    ----------
    name : str
        Of the weight, operator or graph input.
    kind : str
        ``weight``, with its gradient and optimiser state in training; ``received``, from another
        stage or the caller, of all microbatches; ``value``, a storage that its operators made;
        ``saved``, kept for the backward pass of the microbatch at hand; ``earlier``, kept for
        those of earlier microbatches; ``gradient``, of a value, with the buffers for those that
        come back; ``sent``, what other stages read or the graph returns, of other microbatches;
        ``workspace``, of the operator that runs.
    size_bytes : int
    """

    name: str
    kind: AliveKind
    size_bytes: int
