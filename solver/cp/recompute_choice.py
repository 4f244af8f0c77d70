"""CP-SAT variables for recomputation in the backward pass, and its rules.

The rules are those of ``docs/definition.md``, "Recomputation"; :mod:`solver.model.recomputation`
applies them to one plan, these rows to all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from ortools.sat.python import cp_model

from solver.cp.hinted_model import StageChoice
from solver.cp.linear import LinearSum, Literal
from solver.cp.stage_model import StageModel, Value
from solver.model.plan import PartitionPlan
from solver.presolve.transfers import Part


class RecomputeChoice:
    """Chooses, for every operator, the position where it is recomputed; adds the rules to a model.

    `again[u][p]` says that operator u is recomputed on position p; `structure` has families of
    aliases, readers and savers, of the operators by index.
    """

    def __init__(self, stages: StageModel) -> None:
        self.stages = stages
        self.problem = stages.problem
        self.structure = self.problem.storage_graph
        self._unit_of = stages.units.unit_of_operator
        self._on: dict[tuple[int, int], Literal] = {}
        self._any: dict[tuple[int, ...], cp_model.IntVar] = {}
        self._all: dict[tuple[tuple[tuple[int, int], ...], ...], Literal] = {}
        operators = self.problem.operators
        self._is_whole = self.problem.recompute == "layers"
        inner = self.structure.inner
        self.chosen = [
            i
            for i, op in enumerate(operators)
            if op.backward.recomputable and (inner[i] or not self._is_whole)
        ]
        self.again: list[list[Literal]] = [[False for _ in stages.positions] for _ in operators]
        for index in self.chosen:
            self.again[index] = [self._new_again(index, p) for p in stages.positions]
            for member in self.structure.families[index]:
                if operators[member].in_place:
                    self.again[member] = self.again[index]
        self._add_views()
        for index in self.chosen:
            self._add_rules(index)
        regions = self._new_regions() if self._is_whole else {}
        for index in self.chosen:
            backward = operators[index].backward
            if inner[index] and (backward.must_recompute or self._is_whole):
                self._add_required(index, backward.must_recompute or regions[backward.region])

    def on(self, index: int, position: int) -> Literal:
        """Return a literal that is true if an operator is on a position."""
        key = self._unit_of[index], position
        if key not in self._on:
            total = self.stages.on(key[0], (position,))
            self._on[key] = self._literal(total, [total])
        return self._on[key]

    def all_of(self, sums: Sequence[LinearSum]) -> Literal:
        """Return a literal that is true if all of some sums, each 0 or 1, are 1."""
        if any(not total.terms and not total.constant for total in sums):
            return False
        open_ones = {
            tuple((index, factor) for index, (_, factor) in total.terms.items()): total
            for total in sums
            if total.terms
        }
        key = tuple(sorted(open_ones))
        if key not in self._all:
            least = LinearSum(1 - len(key))
            for total in open_ones.values():
                least.add_sum(total)
            self._all[key] = self._literal(least, list(open_ones.values()))
        return self._all[key]

    def any_of(self, literals: Iterable[Literal]) -> Literal:
        """Return a literal that is true if some of the literals are."""
        open_ones: dict[int, cp_model.IntVar] = {}
        for literal in literals:
            if literal is True:
                return True
            if literal is not False:
                open_ones[literal.index] = literal
        if not open_ones:
            return False
        if len(open_ones) == 1:
            return next(iter(open_ones.values()))
        key = tuple(sorted(open_ones))
        if key not in self._any:
            self._any[key] = self._new_any(list(open_ones.values()))
        return self._any[key]

    def _new_any(self, open_ones: list[cp_model.IntVar]) -> cp_model.IntVar:
        values = self.stages.values
        total = self.stages.sum_of(open_ones)
        result = self.stages.new_bool(lambda _: min(total.value(values), 1))
        for literal in open_ones:
            self.stages.imply(literal, result)
        self.stages.add_row(total.copy().add(result, -1).expression >= 0)
        return result

    def _literal(self, least: LinearSum, most: Sequence[LinearSum]) -> Literal:
        """Return a literal that is at least one sum and at most each of others."""
        if not least.terms:
            return least.constant > 0
        if len(least.terms) == 1 and not least.constant:
            variable, coefficient = next(iter(least.terms.values()))
            if coefficient == 1:
                return variable
        values = self.stages.values
        result = self.stages.new_bool(lambda _: max(least.value(values), 0))
        self.stages.add_row(least.copy().add(result, -1).expression <= 0)
        for total in most:
            self.stages.add_row(total.copy().add(result, -1).expression >= 0)
        return result

    def _new_again(self, index: int, position: int) -> Literal:
        unit, name = self._unit_of[index], self.problem.operators[index].name
        if not self.stages.may_be_on(unit, (position,)):
            return False

        def is_again(choice: StageChoice) -> int:
            return name in choice.plan.recomputed and choice.position_of[unit] == position

        again = self.stages.new_bool(is_again)
        self.stages.imply(again, self.on(index, position))
        return again

    def _add_views(self) -> None:
        """Recompute views of recomputed storages if a recomputed operator reads them."""
        operators, structure = self.problem.operators, self.structure
        views = [
            (member, index)
            for index in self.chosen
            for member in structure.families[index]
            if member != index and not operators[member].in_place
        ]
        for member, root in sorted(views, reverse=True):
            readers = [
                self.problem.index_of[name]
                for name in self.problem.readers_of[operators[member].name]
            ]
            for position in self.stages.positions:
                read = self.any_of(self.again[reader][position] for reader in readers)
                conditions = (self.on(member, position), self.again[root][position], read)
                sums = [LinearSum().add(one) for one in conditions]
                self.again[member][position] = self.all_of(sums)

    @cached_property
    def some(self) -> list[Literal]:
        """By position, true if any operator is recomputed there."""
        return [
            self.any_of(self.again[index][position] for index in self.chosen)
            for position in self.stages.positions
        ]

    @cached_property
    def anchor(self) -> list[list[Literal]]:
        """anchor[u][p]: the storage of u is kept on p for recomputed operators."""
        return [
            [self._anchor(index, position) for position in self.stages.positions]
            for index in range(len(self.problem.operators))
        ]

    def _anchor(self, index: int, position: int) -> Literal:
        if self.problem.operators[index].alias_of is not None:
            return False
        readers = self.structure.readers[index]
        read = self.any_of(self.again[reader][position] for reader in readers)
        return self.all_of([LinearSum().add(read), self.stays(index, position)])

    def stays(self, index: int, position: int) -> LinearSum:
        """Return a sum that is 1 if an operator is on a position and not recomputed, else 0."""
        total = LinearSum().add(self.on(index, position))
        return total.add(self.again[index][position], -1)

    def _add_rules(self, index: int) -> None:
        operators, structure = self.problem.operators, self.structure
        region = operators[index].backward.region
        savers, readers = structure.savers[index], structure.readers[index]
        for position in self.stages.positions:
            again = self.again[index][position]
            if again is False:
                continue
            users = LinearSum(1 if operators[index].backward.residual_bytes else 0)
            for saver in savers:
                users.add(self.on(saver, position))
                if operators[saver].backward.region != region:
                    self._exclude(again, self.on(saver, position))
            for reader in readers:
                users.add(self.again[reader][position])
                if operators[reader].backward.region != region:
                    self._exclude(again, self.again[reader][position])
            self.stages.add_row(users.add(again, -1).expression >= 0)
            for member in structure.families[index]:
                own = operators[member]
                if own.in_place:
                    may_follow = own.backward.region == region and not own.backward.residual_bytes
                    self.stages.imply(again, may_follow and self.on(member, position))
                self._read_before_written(member, position)

    def _read_before_written(self, index: int, position: int) -> None:
        """Forbid a recomputed operator to read a kept tensor that is later modified in place."""
        problem = self.problem
        for read in problem.operators[index].reads:
            root = problem.index_of.get(problem.root_of[read])
            if root is None:
                continue
            for writer in self.structure.families[root]:
                if problem.operators[writer].in_place and writer > index:
                    total = LinearSum(-1).add(self.again[index][position])
                    total.add(self.on(writer, position)).add(self.again[root][position], -1)
                    total.add(self.on(root, position)).constant -= 1
                    self.stages.add_row(total.expression <= 0)

    def _exclude(self, first: Literal, second: Literal) -> None:
        total = LinearSum(-1).add(first).add(second)
        self.stages.add_row(total.expression <= 0)

    def _new_regions(self) -> dict[int, cp_model.IntVar]:
        """Return literals by region: some operator of it is recomputed, on any position."""
        regions: dict[int, list[int]] = {}
        for index in self.chosen:
            regions.setdefault(self.problem.operators[index].backward.region, []).append(index)
        found: dict[int, cp_model.IntVar] = {}
        for region, own in regions.items():
            members = frozenset(self.problem.operators[index].name for index in own)

            def is_again(choice: StageChoice, members: frozenset[str] = members) -> int:
                return not members.isdisjoint(choice.plan.recomputed)

            found[region] = self.stages.new_bool(is_again)
            for index in own:
                for again in self.again[index]:
                    self.stages.imply(again, found[region])
        return found

    def _add_required(self, index: int, condition: Literal) -> None:
        """Require recomputation of an inner operator, under a condition, if its result is used."""
        structure, operators = self.structure, self.problem.operators
        family = structure.families[index]
        writers = [member for member in family if operators[member].in_place]
        is_needed = bool(writers or operators[index].backward.residual_bytes)
        for position in self.stages.positions:
            again = self.again[index][position]
            if again is False:
                continue
            users: list[Literal] = [is_needed]
            if not is_needed:
                users += [self.on(saver, position) for saver in structure.savers[index]]
                readers = (reader for reader in structure.readers[index] if reader not in family)
                users += [self.again[reader][position] for reader in readers]
            premises = [condition, self.any_of(users)]
            premises += [self.on(member, position) for member in {index, *writers}]
            self.stages.imply(self.all_of([LinearSum().add(one) for one in premises]), again)

    @property
    def literals(self) -> list[list[Literal]]:
        """Literals by operator and position."""
        return self.again

    def added_ns(self, device_class: str, part: Part) -> list[int]:
        """Return the time of a second forward pass; it counts towards the backward pass."""
        forward_ns, _ = self.problem.arrays.pass_latency_ns(device_class)
        times: list[int] = ((part != "forward") * forward_ns).tolist()
        return times

    def recorded(self, plan: PartitionPlan, value: Value) -> PartitionPlan:
        """Return a plan with the recomputed operators of a solution."""
        recomputed = frozenset(
            self.problem.operators[index].name
            for index in self.chosen
            if any(
                again if isinstance(again, bool) else value(again) for again in self.again[index]
            )
        )
        return replace(plan, recomputed=recomputed)
