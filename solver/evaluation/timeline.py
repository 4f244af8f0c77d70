"""When every action of a pipeline runs, how long a step takes, and how much of it is bubble.

``docs/definition.md``, "The step of a pipeline", defines what this module computes. The times of
a step are those of an event graph: jobs, each of which starts as soon as all those that it comes
after have ended. Everybody does their jobs in a fixed order, so the graph depends on the tables
of actions and on who waits for whom, never on times: a step is a longest path in it, and the rows
that CP-SAT minimises are its arcs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from solver.model.checks import check_natural, only_given
from solver.model.errors import PartitionError
from solver.model.schedules import PASSES, Action, ActionTables, Pass

JobKind = Literal["action", "link", "write", "read"]

Arc = tuple[int, int]
"""Two positions of which the second reads from the first."""


class Task(NamedTuple):
    """What jobs of all microbatches have in common, and so how long they take.

    Attributes
    ----------
    kind : {"action", "link", "write", "read"}
        An action of a rank; a transfer on the link between two ranks; one to, or from, the
        staging memory of the host.
    step : {"forward", "backward"}
        The pass that it belongs to.
    source, target : int
        Positions; the same one except for "link".
    """

    kind: JobKind
    step: Pass
    source: int
    target: int

    def resource(self, ranks: int) -> tuple[int | str, ...]:
        """Return what does the task, one job at a time: a rank, or the link between two ends."""
        source, target = self.source % ranks, self.target % ranks
        ends: dict[JobKind, tuple[int | str, ...]] = {
            "action": (source,),
            "link": (source, target),
            "write": (source, "host"),
            "read": ("host", target),
        }
        return ends[self.kind]


class Job(NamedTuple):
    """One node of the event graph.

    Attributes
    ----------
    microbatch : int
        Numbered from 0.
    after : tuple of (int, Arc or None)
        Earlier jobs that it waits for, by number; with the arc because of which it does, or None
        if both are turns of one rank or link or parts of one transfer.
    """

    task: Task
    microbatch: int
    after: tuple[tuple[int, Arc | None], ...]


@dataclass(frozen=True, slots=True)
class PipelineTimes:
    """How long everything takes that is done once for every microbatch.

    Parameters
    ----------
    forward_ns, backward_ns : tuple of int
        Compute time of the passes at each position.
    arcs : mapping of (int, int) to (int, int)
        The pairs of positions of which the second waits for the first in forward passes, and the
        first for the second in backward passes; with the transfer times of values and of their
        gradients, all of them together.
    staged_ns : mapping of int to (int, int, int, int)
        Only where transfers go through the host, and all those of `arcs` are 0: what a position
        reads and writes in forward passes, and reads and writes in backward passes.
    overlap : bool
        Transfers take their time on links and occupy no rank.
    """

    forward_ns: tuple[int, ...]
    backward_ns: tuple[int, ...]
    arcs: Mapping[Arc, tuple[int, int]] = field(default_factory=dict)
    staged_ns: Mapping[int, tuple[int, int, int, int]] = field(default_factory=dict)
    overlap: bool = False
    __repr__ = only_given

    def jobs(self, tables: ActionTables) -> tuple[Job, ...]:
        """Return the jobs of one step of `tables`, each after all that it waits for."""
        return event_graph(
            tables,
            len(self.forward_ns),
            tuple(self.arcs),
            overlap=self.overlap,
            staged=bool(self.staged_ns),
        )

    def duration_ns(self, task: Task) -> int:
        """Return how long the jobs of `task` take; without overlap actions include transfers."""
        backward = task.step == "backward"
        if task.kind == "link":
            first, second = (task.target, task.source) if backward else (task.source, task.target)
            return self.arcs[first, second][backward]
        read_ns, write_ns = self.staged_ns.get(task.source, (0, 0, 0, 0))[2 * backward :][:2]
        if task.kind == "read":
            return read_ns
        if task.kind == "write":
            return write_ns
        compute_ns = (self.backward_ns if backward else self.forward_ns)[task.source]
        if self.overlap:
            return compute_ns
        moved_ns = sum(times[backward] for arc, times in self.arcs.items() if task.source in arc)
        return compute_ns + moved_ns + read_ns + write_ns


class Event(NamedTuple):
    """An action with its times; without overlap it includes what the rank receives and sends."""

    position: int
    microbatch: int
    kind: Pass
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class PipelineTimeline:
    """One step of a pipeline.

    Attributes
    ----------
    events : tuple of tuple of Event
        By rank, in their order.
    step_ns : int
        When the last of all jobs, transfers included, has ended; the first starts at 0.
    """

    events: tuple[tuple[Event, ...], ...]
    step_ns: int
    __repr__ = only_given

    @property
    def busy_ns(self) -> tuple[int, ...]:
        """The time that each rank spends on its actions."""
        return tuple(sum(event.end_ns - event.start_ns for event in row) for row in self.events)

    @property
    def idle_ns(self) -> tuple[int, ...]:
        """The time that each rank waits: its bubble."""
        return tuple(self.step_ns - busy_ns for busy_ns in self.busy_ns)


def simulate(
    tables: ActionTables,
    forward_ns: Sequence[int],
    backward_ns: Sequence[int] = (),
    hop_forward_ns: Sequence[int] = (),
    hop_backward_ns: Sequence[int] = (),
    *,
    overlap: bool = False,
) -> PipelineTimeline:
    """Return when everything runs in a chain of positions that only talk to their neighbours.

    Parameters
    ----------
    tables : tuple of tuple of Action
        See :func:`solver.model.schedules.action_tables`; position p is on rank p mod their number.
    forward_ns, backward_ns : sequence of int
        Of one microbatch at each position; without `backward_ns` those times are 0.
    hop_forward_ns, hop_backward_ns : sequence of int
        Of the transfer from each position but the last to the next one, and back; left out, they
        are 0.
    overlap : bool
        Without, a rank receives before it computes and sends afterwards, and spends the time of
        the hop on both. With, a hop takes its time on the link, and the links, one for each
        ordered pair of ranks, carry one transfer at a time in the order in which they are handed
        over; ranks go on meanwhile.

    Raises
    ------
    PartitionError
        If numbers of positions differ, a time is negative or no integer, a hop between positions
        of one rank takes time, or the tables wait for each other for ever.

    Notes
    -----
    Where a transfer occupies only the receiver (it asks for the value when it needs it, and the
    sender goes on), add the hops to the `forward_ns` and `backward_ns` of the receivers.

    Examples
    --------
    >>> from solver.model.schedules import action_tables
    >>> timeline = simulate(action_tables("1f1b", 4, devices=2), [10, 10], [20, 20])
    >>> timeline.step_ns, timeline.idle_ns
    (150, (30, 30))
    """
    count = len(forward_ns)
    checked: list[tuple[int, ...]] = []
    for what, numbers, length, unit in (
        ("forward_ns", forward_ns, count, "position"),
        ("backward_ns", backward_ns, count, "position"),
        ("hop_forward_ns", hop_forward_ns, max(0, count - 1), "hop"),
        ("hop_backward_ns", hop_backward_ns, max(0, count - 1), "hop"),
    ):
        if len(numbers) not in (0, length):
            raise PartitionError(
                f"{what} has {len(numbers)} entries for {count} positions; write one for each "
                f"{unit}: {length}"
            )
        for index, number in enumerate(numbers):
            check_natural(number, f"{what}[{index}]")
        checked.append(tuple(numbers) or (0,) * length)
    forward, backward, there, back = checked
    if len(tables) == 1 and any(there + back):
        raise PartitionError("hops between positions of one rank take time; write 0 for them")
    arcs = {(p, p + 1): (there[p], back[p]) for p in range(count - 1)}
    return timeline(tables, PipelineTimes(forward, backward, arcs, overlap=overlap))


def timeline(tables: ActionTables, times: PipelineTimes) -> PipelineTimeline:
    """Return when everything runs: every job as soon as all that it waits for has ended.

    Raises
    ------
    PartitionError
        If an action has no times, or actions wait for each other for ever.
    """
    events: list[list[Event]] = [[] for _ in tables]
    step_ns = 0
    for (task, microbatch, _), start_ns, end_ns in timed_jobs(tables, times):
        step_ns = max(step_ns, end_ns)
        if task.kind == "action":
            event = Event(task.source, microbatch, task.step, start_ns, end_ns)
            events[task.source % len(tables)].append(event)
    return PipelineTimeline(tuple(map(tuple, events)), step_ns)


def timed_jobs(tables: ActionTables, times: PipelineTimes) -> list[tuple[Job, int, int]]:
    """Return all jobs of a step with the nanoseconds at which they start and end.

    Raises
    ------
    PartitionError
        As :func:`timeline`.
    """
    jobs = times.jobs(tables)
    durations = {task: times.duration_ns(task) for task in {job.task for job in jobs}}
    ends: list[int] = []
    timed: list[tuple[Job, int, int]] = []
    for job in jobs:
        start_ns = max([ends[number] for number, _ in job.after], default=0)
        ends.append(start_ns + durations[job.task])
        timed.append((job, start_ns, ends[-1]))
    return timed


def event_graph(
    tables: ActionTables,
    position_count: int,
    arcs: Sequence[Arc],
    *,
    overlap: bool = False,
    staged: bool = False,
) -> tuple[Job, ...]:
    """Return the jobs of one step, each after all that it waits for.

    Parameters
    ----------
    tables : tuple of tuple of Action
        By rank, its actions in order.
    position_count : int
        Positions of the chain, ranks times chunks.
    arcs : sequence of (int, int)
        Who reads from whom.
    overlap : bool
        Transfers are jobs of their own.
    staged : bool
        They go to the staging memory of the host and from there.

    Raises
    ------
    PartitionError
        If the tables and the arcs contradict each other.
    """
    return _Player(tables, position_count, arcs, overlap, staged).play()


class _Player:
    """Lists jobs by playing the tables, each rank until it waits for another."""

    def __init__(
        self,
        tables: ActionTables,
        position_count: int,
        arcs: Sequence[Arc],
        overlap: bool,
        staged: bool,
    ) -> None:
        self._tables = tables
        self._overlap = overlap
        self._staged = staged
        self._jobs: list[Job] = []
        self._latest: dict[tuple[int | str, ...], int] = {}
        self._handed_over: dict[tuple[Task, int], int] = {}
        # By pass and position: the arcs by which something arrives, and by which something leaves.
        self._arriving: dict[Pass, list[list[Arc]]] = {
            step: [[] for _ in range(position_count)] for step in PASSES
        }
        self._leaving: dict[Pass, list[list[Arc]]] = {
            step: [[] for _ in range(position_count)] for step in PASSES
        }
        for arc in sorted(arcs):
            source, target = arc
            self._leaving["forward"][source].append(arc)
            self._arriving["forward"][target].append(arc)
            self._leaving["backward"][target].append(arc)
            self._arriving["backward"][source].append(arc)

    def play(self) -> tuple[Job, ...]:
        """Return all jobs."""
        turns = [0] * len(self._tables)
        moved = True
        while moved:
            moved = False
            for rank, table in enumerate(self._tables):
                while turns[rank] < len(table) and self._is_ready(table[turns[rank]]):
                    self._run(table[turns[rank]])
                    turns[rank] += 1
                    moved = True
        for rank, table in enumerate(self._tables):
            if turns[rank] < len(table):
                action = table[turns[rank]]
                raise PartitionError(
                    f"rank {rank} waits for ever to begin {action}; let every table do what "
                    "others wait for first, as those of action_tables do"
                )
        return tuple(self._jobs)

    def _sent_by(self, arc: Arc, step: Pass) -> Task:
        """Return the task at whose end what travels along `arc` is there, or can be read."""
        source, target = arc if step == "forward" else arc[::-1]
        if not self._overlap or (target - source) % len(self._tables) == 0:
            return Task("action", step, source, source)
        if self._staged:
            return Task("write", step, source, source)
        return Task("link", step, source, target)

    def _is_ready(self, action: Action) -> bool:
        position, microbatch, step = action
        if position >= len(self._arriving[step]):
            raise PartitionError(
                f"the tables name position {position}, but there are times of "
                f"{len(self._arriving[step])}; write as many as the tables have"
            )
        return all(
            (self._sent_by(arc, step), microbatch) in self._handed_over
            for arc in self._arriving[step][position]
        )

    def _run(self, action: Action) -> None:
        position, microbatch, step = action
        waits: dict[int, Arc | None] = {}
        staged: dict[int, Arc | None] = {}
        for arc in self._arriving[step][position]:
            task = self._sent_by(arc, step)
            (staged if task.kind == "write" else waits)[self._handed_over[task, microbatch]] = arc
        if staged:
            read = Task("read", step, position, position)
            waits[self._add(read, microbatch, staged)] = None
        done = self._add(Task("action", step, position, position), microbatch, waits)
        for arc in self._leaving[step][position]:
            task = self._sent_by(arc, step)
            if (task, microbatch) not in self._handed_over:
                self._add(task, microbatch, {done: None})

    def _add(self, task: Task, microbatch: int, waits: dict[int, Arc | None]) -> int:
        """Add a job that waits for others, and for the one before it at the same rank or link."""
        number = len(self._jobs)
        resource = task.resource(len(self._tables))
        if resource in self._latest:
            waits = {**waits, self._latest[resource]: None}
        self._jobs.append(Job(task, microbatch, tuple(waits.items())))
        self._latest[resource] = number
        self._handed_over[task, microbatch] = number
        return number
