"""Settings of the pipeline that runs a plan, and limits on its stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from solver.model.checks import check_choice, check_positive, check_positive_or_none, only_given
from solver.model.devices import Interconnect
from solver.model.errors import PartitionError
from solver.model.problem_checks import MOST_CHUNKS
from solver.model.text import shown
from solver.model.training import SCHEDULES, Schedule


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Schedule of the stages, and limits on their number.

    Parameters
    ----------
    schedule : {"gpipe", "1f1b"}, optional
        Plan a pipeline that runs by this schedule: stages relay values to the next one, every
        hop counts (``charging="relayed"``), and the objective is ``"step"`` by default. Without a
        schedule a stage sends to every stage that reads from it, and training counts the
        microbatches in flight of 1F1B.
    microbatches : int, optional
        Microbatches in a step, by default one; the example inputs are one microbatch.
    chunks_per_device : int, optional
        Most stages of a device, by default one. With more than one, data may pass through the
        devices several times (interleaved stages).
    max_devices : int, optional
        Most devices that a plan uses, by default all.

    Raises
    ------
    PartitionError
        If a field has a value of the wrong kind or size.

    Examples
    --------
    >>> Pipeline("1f1b", microbatches=8)
    Pipeline(schedule='1f1b', microbatches=8)
    >>> Pipeline("1f1b", microbatches=0)
    Traceback (most recent call last):
    solver.model.errors.PartitionError: microbatches is 0; write at least 1
    """

    schedule: Schedule | None = None
    microbatches: int | None = None
    chunks_per_device: int | None = None
    max_devices: int | None = None

    def __post_init__(self) -> None:
        if self.schedule is not None:
            check_choice(self.schedule, SCHEDULES, "schedule")
        for name, most in (("microbatches", None), ("chunks_per_device", MOST_CHUNKS)):
            if (value := getattr(self, name)) is not None:
                check_positive(value, name, most)
        check_positive_or_none(self.max_devices, "max_devices", "no limit")

    __repr__ = only_given

    def settings(
        self, objective: str | Sequence[str] | None, interconnect: Interconnect
    ) -> dict[str, Any]:
        """Return the arguments of :class:`solver.PartitionProblem` that are not None.

        Parameters
        ----------
        objective : str or sequence of str, optional
            The requested objective; with a schedule ``"step"`` by default.
        interconnect : Interconnect
            Interconnect of the devices; with a schedule its charging becomes relayed.

        Raises
        ------
        PartitionError
            If there is a schedule, but the interconnect is host-staged.

        Examples
        --------
        >>> sorted(Pipeline("1f1b", microbatches=8).settings(None, Interconnect()))
        ['interconnect', 'microbatches', 'objective', 'schedule']
        """
        if self.schedule is not None:
            if interconnect.charging == "host_staged":
                raise PartitionError(
                    f"schedule is {shown(self.schedule)}, but the transfers of a pipeline pass "
                    "from stage to stage, not through a host; leave schedule out, or give "
                    "charging='relayed'"
                )
            interconnect = replace(interconnect, charging="relayed")
            objective = "step" if objective is None else objective
        asked = {
            "objective": objective,
            "interconnect": interconnect,
            "schedule": self.schedule,
            "microbatches": self.microbatches,
            "chunks_per_device": self.chunks_per_device,
            "max_devices": self.max_devices,
        }
        return {name: value for name, value in asked.items() if value is not None}
