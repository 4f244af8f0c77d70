"""The error of a failed rank, raised by every rank of a pipeline.

A rank that fails ends, and the others only see a closed connection. So it first leaves its reason
in the store of the process group, where they look for it.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.util import Finalize
from typing import Final

import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from fx_bridge.capture.model.messages import refusal_in
from solver import PartitionError

_REASON: Final = "reason"
_HEARD: Final = "heard"
_STAY_S: Final = 10.0
_POLL_S: Final = 0.02
_BUILT: Final[Counter[str]] = Counter()
"""Pipelines built by this process, by the ranks of their group: all ranks build the same."""


class Failures:
    """The reasons of the ranks of one pipeline.

    Nothing is reported without process groups, or outside of the pipeline's group.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._store: PrefixStore | None = None
        self._at_exit: Finalize | None = None
        if not dist.is_available() or not dist.is_initialized() or dist.get_rank(group) < 0:
            return
        self._rank, self._others = dist.get_rank(group), dist.get_world_size(group) - 1
        ranks = "-".join(map(str, dist.get_process_group_ranks(group)))
        # MPI has no store.
        if (store := dist.distributed_c10d._get_default_store()) is not None:
            self._store = PrefixStore(f"fxpartition/{ranks}/{_BUILT[ranks]}", store)
        _BUILT[ranks] += 1

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Report an error raised within to the other ranks, which take no part in that work."""
        try:
            yield
        except Exception as error:
            self._tell(error)
            raise

    def begin(self) -> None:
        """Withdraw this rank's report, since its caller goes on."""
        if self._store is not None and self._at_exit is not None:
            self._at_exit.cancel()
            self._at_exit = None
            with contextlib.suppress(RuntimeError):
                self._store.delete_key(_REASON)

    def to_raise(self, error: Exception) -> Exception:
        """Return the exception to raise for a caught `error`, and report it to the other ranks.

        It is a refusal without the errors that torch wraps around it; else the reason of another
        rank, if there is one; else `error`.
        """
        refusal = refusal_in(error)
        if refusal is None:
            reason = self._reason()
            if reason is not None:
                return PartitionError(reason)
        if refusal is not None or not _is_of_connection(error):
            self._tell(refusal or error)
        return refusal or error

    def _reason(self) -> str | None:
        if self._store is not None:
            # The store ends with the process that hosts it.
            with contextlib.suppress(RuntimeError):
                if self._store.check([_REASON]):
                    reason = str(self._store.get(_REASON), "utf-8")
                    # Once all have heard it, the store may end.
                    self._store.add(_HEARD, 1)
                    return reason
        return None

    def _tell(self, error: Exception) -> None:
        cause: BaseException = error
        while cause.__cause__ is not None and not isinstance(cause, PartitionError):
            # The messages of torch's schedules only list arguments.
            cause = cause.__cause__
        kind = "" if isinstance(cause, PartitionError) else f"{type(cause).__name__}: "
        if self._store is None or self._reason() is not None:
            return
        with contextlib.suppress(RuntimeError):
            self._store.set(_REASON, f"rank {self._rank}: {kind}{' '.join(str(cause).split())}")
            self._at_exit = Finalize(None, _stay, (self._store, self._others), exitpriority=0)


def _stay(store: PrefixStore, others: int) -> None:
    """Close all connections, so that the others notice, but keep the store alive for a while."""
    with contextlib.suppress(RuntimeError):
        if dist.is_initialized() and dist.get_backend() == "gloo":
            dist.destroy_process_group()
            deadline_s = time.monotonic() + _STAY_S
            while store.add(_HEARD, 0) < others and time.monotonic() < deadline_s:
                time.sleep(_POLL_S)


def _is_of_connection(error: Exception) -> bool:
    """Return True if an error only means that another rank does not answer."""
    return isinstance(error, dist.DistError) or "/gloo/" in str(error)
