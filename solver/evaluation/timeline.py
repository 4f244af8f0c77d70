"""The timeline of a pipeline step: start and end of every action, step time and bubble.

``docs/definition.md``, "The step of a pipeline", gives the definition. The times of a step are
those of an event graph, in which a job starts as soon as all its predecessors have ended. Ranks
and links run their jobs in a fixed order, so the graph depends on the action tables and the arcs,
never on times: the step time is a longest path in it, and its arcs are the constraints of the
CP-SAT model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from solver.model.checks import only_given
from solver.model.errors import PartitionError
from solver.model.schedules import Action, ActionTables, Pass

JobKind = Literal["action", "link", "write", "read"]

Arc = tuple[int, int]
"""A pair of positions; the second reads from the first."""


class Task(NamedTuple):
    """The jobs of all microbatches that share a kind, a pass and positions, hence a duration.

    Its kind is an action of a rank ("action"), a transfer on the link between two ranks ("link"),
    or one to ("write") or from ("read") the staging memory of the host. Positions are equal except
    for "link".
    """

    kind: JobKind
    step: Pass
    source: int
    target: int

    def resource(self, ranks: int) -> tuple[int | str, ...]:
        """Return the unary resource that runs the task: a rank, or the link between two ends."""
        source, target = self.source % ranks, self.target % ranks
        ends: dict[JobKind, tuple[int | str, ...]] = {
            "action": (source,),
            "link": (source, target),
            "write": (source, "host"),
            "read": ("host", target),
        }
        return ends[self.kind]


class EventNode(NamedTuple):
    """One node of the event graph.

    `after` has the numbers of its predecessors, each with the arc that causes the precedence, or
    None if both jobs share a rank or link or are parts of one transfer.
    """

    task: Task
    microbatch: int
    after: tuple[tuple[int, Arc | None], ...]


@dataclass(frozen=True, slots=True)
class PipelineTimes:
    """Durations of the work of one microbatch.

    Parameters
    ----------
    forward_ns, backward_ns : tuple of int
        Compute time of the passes at each position.
    arcs : mapping of (int, int) to (int, int)
        Pairs of positions; the second waits for the first in forward passes, and the first for
        the second in backward passes. Each has the total transfer times of its values and of
        their gradients.
    staged_ns : mapping of int to (int, int, int, int)
        Given only if transfers go through the host, and then all times of `arcs` are 0: the read
        and write times of a position in forward passes, then in backward passes.
    overlap : bool
        True if transfers take their time on links and occupy no rank.
    """

    forward_ns: tuple[int, ...]
    backward_ns: tuple[int, ...]
    arcs: Mapping[Arc, tuple[int, int]] = field(default_factory=dict)
    staged_ns: Mapping[int, tuple[int, int, int, int]] = field(default_factory=dict)
    overlap: bool = False
    __repr__ = only_given

    def jobs(self, tables: ActionTables) -> tuple[EventNode, ...]:
        """Return the jobs of one step of `tables` in topological order."""
        return event_graph(
            tables,
            len(self.forward_ns),
            tuple(self.arcs),
            overlap=self.overlap,
            staged=bool(self.staged_ns),
        )

    def duration_ns(self, task: Task) -> int:
        """Return the duration of a job of `task`; without overlap, actions include transfers."""
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
    """An action with its times; without overlap it includes the rank's transfers."""

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
        The events of each rank, in order.
    step_ns : int
        End of the last job, transfers included; the first starts at 0.
    """

    events: tuple[tuple[Event, ...], ...]
    step_ns: int
    __repr__ = only_given

    @property
    def busy_ns(self) -> tuple[int, ...]:
        """Nanoseconds that each rank spends on its actions."""
        return tuple(sum(event.end_ns - event.start_ns for event in row) for row in self.events)

    @property
    def idle_ns(self) -> tuple[int, ...]:
        """Nanoseconds that each rank waits: its bubble."""
        return tuple(self.step_ns - busy_ns for busy_ns in self.busy_ns)


def timeline(tables: ActionTables, times: PipelineTimes) -> PipelineTimeline:
    """Return the timeline in which every job starts as soon as its predecessors have ended.

    Refuses an action without times, and tables that deadlock.
    """
    events: list[list[Event]] = [[] for _ in tables]
    step_ns = 0
    for (task, microbatch, _), start_ns, end_ns in timed_jobs(tables, times):
        step_ns = max(step_ns, end_ns)
        if task.kind == "action":
            event = Event(task.source, microbatch, task.step, start_ns, end_ns)
            events[task.source % len(tables)].append(event)
    return PipelineTimeline(tuple(map(tuple, events)), step_ns)


def timed_jobs(tables: ActionTables, times: PipelineTimes) -> list[tuple[EventNode, int, int]]:
    """Return all jobs of a step with their start and end in ns; refuses as :func:`timeline`."""
    jobs = times.jobs(tables)
    durations = {task: times.duration_ns(task) for task in {job.task for job in jobs}}
    ends: list[int] = []
    timed: list[tuple[EventNode, int, int]] = []
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
) -> tuple[EventNode, ...]:
    """Return the jobs of one step in topological order.

    The chain has `position_count` positions, ranks times chunks; the second position of an arc
    reads from the first. With `overlap` transfers are jobs of their own; if `staged`, they go
    through the staging memory of the host. Tables and arcs that contradict each other are refused.
    """
    return _Player(tables, position_count, arcs, overlap, staged).play()


class _Player:
    """Lists the jobs by executing the tables, each rank until it has to wait for another."""

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
        self._jobs: list[EventNode] = []
        self._latest: dict[tuple[int | str, ...], int] = {}
        self._handed_over: dict[tuple[Task, int], int] = {}
        # Arcs by their positions; a backward pass goes the other way.
        by_source: list[list[Arc]] = [[] for _ in range(position_count)]
        by_target: list[list[Arc]] = [[] for _ in range(position_count)]
        for arc in sorted(arcs):
            by_source[arc[0]].append(arc)
            by_target[arc[1]].append(arc)
        self._arriving: dict[Pass, list[list[Arc]]]
        self._arriving = {"forward": by_target, "backward": by_source}
        self._leaving: dict[Pass, list[list[Arc]]]
        self._leaving = {"forward": by_source, "backward": by_target}

    def play(self) -> tuple[EventNode, ...]:
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
        """Return the task whose end makes the value of `arc` available, or readable if staged."""
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
        """Add a job with the given predecessors and the previous job of its rank or link."""
        number = len(self._jobs)
        resource = task.resource(len(self._tables))
        if resource in self._latest:
            waits = {**waits, self._latest[resource]: None}
        self._jobs.append(EventNode(task, microbatch, tuple(waits.items())))
        self._latest[resource] = number
        self._handed_over[task, microbatch] = number
        return number
