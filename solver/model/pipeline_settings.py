"""The settings of a problem whose plan will run as a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from solver.model.devices import Interconnect
from solver.model.errors import PartitionError


def pipeline_settings(
    schedule: str | None,
    objective: str | Sequence[str] | None,
    interconnect: Interconnect,
) -> dict[str, Any]:
    """Return the settings of :class:`solver.PartitionProblem` that a schedule decides.

    Parameters
    ----------
    schedule : {"gpipe", "1f1b"} or None
        None where no pipeline is planned: stages send to all that read from them.
    objective : str, sequence of str or None
        None is ``"step"`` with a schedule, and ``"bottleneck"`` without.
    interconnect : Interconnect
        With a schedule its values are relayed, whatever it says of peers.

    Raises
    ------
    PartitionError
        If the transfers of a pipeline are to be staged through a host.

    Examples
    --------
    >>> sorted(pipeline_settings("1f1b", None, Interconnect()))
    ['interconnect', 'objective', 'schedule']
    """
    if schedule is None:
        chosen = "bottleneck" if objective is None else objective
        return {"objective": chosen, "interconnect": interconnect}
    if isinstance(interconnect, Interconnect):
        if interconnect.charging == "host_staged":
            raise PartitionError(
                f"schedule is {schedule!r}, but the transfers of a pipeline pass from stage to "
                "stage, not through a host; leave schedule out, or give charging='relayed'"
            )
        interconnect = replace(interconnect, charging="relayed")
    return {
        "objective": "step" if objective is None else objective,
        "interconnect": interconnect,
        "schedule": schedule,
    }
