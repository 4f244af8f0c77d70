"""One random program through capture, plans and splits; every difference is a failure.

A case ends in one of few ways, each of which is counted: compared (with gradients, or without
where the model has no backward pass), or refused for a reason that is listed here. Anything
else raises an AssertionError with the program's listing.
"""

import operator
import random
import re
from collections import Counter

import torch

from fx_bridge.capture.graph import capture
from fx_bridge.digraph import to_digraph
from fx_bridge.equivalence.check import check_equivalence
from fx_bridge.equivalence.observation import original_name
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.colocation import colocation_groups
from solver import Device, PartitionError, SolveLimits, evaluate, problem_from_digraph, solve
from tests.support.random_plans import random_plan
from tests.support.separated import separated

REFUSALS = {
    "no operators": r"has no operators",
    # torch.export gives the region of a no_grad this name, and fails where the model has it.
    "name of a region": r"attribute 'submod_\d+' already exists",
    # torch.export refuses inputs that a transpose or squeeze in place gives another shape.
    "shape of an input": r"IndexError: list index out of range",
    # It fails where a view of a transposed input is transposed in place.
    "shape of a view": r"sources must not be empty for symbol",
    # It makes a constant of x.data, of which there is no value.
    "data of a tensor": r"fake tensor in the exported program constant's list",
}
"""What a capture may be refused for, and the message."""

ROUNDING = 1e-4
"""Largest difference where a kernel is given its input with other strides."""


def check_program(program, *, plans=2, solver=False):
    """Capture, split and compare; return how the case ended.

    Parameters
    ----------
    program : Program
    plans : int
        How many random plans; every one is run in one process and apart.
    solver : bool
        Also let the solver make a plan, for devices with little memory.

    Returns
    -------
    str
    """
    case = _Case(program)
    before = {name: tensor.clone() for name, tensor in case.model.state_dict().items()}
    state = torch.get_rng_state()
    try:
        captured = _captured(case)
    except PartitionError as error:
        for reason, pattern in REFUSALS.items():
            if re.search(pattern, str(error)):
                return f"refused: {reason}"
        raise case.failure(f"refused: {error}") from error
    after = case.model.state_dict()
    case.require(all(_same(before[name], after[name]) for name in before), "capture writes")
    case.require(torch.equal(state, torch.get_rng_state()), "capture draws random numbers")
    case.compare("captured", captured.module)
    rng = random.Random(program.seed)
    chosen = [_random_plan(captured, rng) for _ in range(plans)]
    if solver:
        chosen += _solved(captured, rng)
    for plan in chosen:
        split = split_by_plan(captured, plan)
        case.compare(str(plan), split, aliasing=True)
        case.compare_names(split)
        case.compare_apart(f"apart, {plan}", split)
    return "compared" if case.gradients else "compared without gradients"


class _Case:
    def __init__(self, program):
        self.program = program
        self.model, self.args, self.kwargs = program.build()
        self.owner = self.model
        try:
            report = self.report(self.model, gradients=True)
            self.gradients = True
        except PartitionError as error:
            # Nothing to differentiate, or values written that backward needs.
            assert re.search("no output depends|modified by an inplace", str(error)), error
            report = self.report(self.model, gradients=False)
            self.gradients = False
        self.require(report.equal, f"the program differs from itself: {report.differences}")

    def failure(self, what):
        return AssertionError(f"{what}\n\n{self.program.source}")

    def require(self, condition, what):
        if not condition:
            raise self.failure(what)

    def report(self, module, **options):
        return check_equivalence(self.model, module, self.args, self.kwargs, **options)

    def compare(self, what, module, *, inputs=True, aliasing=False):
        """Fail unless `module` equals the model, but for its inputs after the call if not asked.

        What becomes of the caller's tensors is seen in the caller's process alone.
        """
        found = self.differences(what, module, inputs=inputs, aliasing=aliasing)
        self.require(not found, f"{what}: {found}")

    def differences(self, what, module, *, inputs, aliasing=False):
        try:
            report = self.report(module, gradients=self.gradients, aliasing=aliasing)
        except Exception as error:
            raise self.failure(f"{what}: {error}") from error
        return [t for t in report.differences if inputs or not re.match(r"(kw)?args", t)]

    def compare_apart(self, what, split):
        """Compare stages that share nothing; other strides may explain how results round."""
        found = self.differences(what, separated(split), inputs=False)
        if found:
            same = separated(split, keep_strides=True)
            self.compare(f"{what}, same strides", same, inputs=False)
            amounts = [re.search(r"by at most (\S+)$", text) for text in found]
            rounded = all(amount and float(amount[1]) <= ROUNDING for amount in amounts)
            self.require(rounded, f"{what}: {found}")

    def compare_names(self, split):
        """Fail unless the state_dict of the split holds the model's tensors by their names."""
        for key, tensor in split.state_dict().items():
            name = original_name(split, key)
            try:
                known = operator.attrgetter(name)(self.owner).data_ptr() == tensor.data_ptr()
            except AttributeError:
                # Constants of the code.
                known = re.match("_tensor_constant|lifted_tensor", name)
            self.require(known, f"the state_dict has {key!r}")


def _captured(case):
    return capture(case.model, case.args, case.kwargs)


def _same(a, b):
    return torch.equal(a.nan_to_num(), b.nan_to_num())


def _random_plan(captured, rng):
    groups = colocation_groups(captured, training=rng.random() < 0.3)
    chunks = rng.choice([1, 1, 2, 3])
    devices = rng.choice([2, 3, 4]) if chunks == 1 else 2
    return random_plan(captured, groups, devices, rng, chunks=chunks)


def _solved(captured, rng):
    """Return the best plan for devices of which none holds all, if there is one."""
    graph = to_digraph(captured)
    alone = problem_from_digraph(graph, [Device("cuda:0")])
    plan = solve(alone, solver="greedy").plan
    needed_bytes = evaluate(alone, plan).usage[0].memory_bytes
    devices = [
        Device(name, memory_bytes=int(needed_bytes * rng.uniform(0.55, 0.95)))
        for name in ("cuda:0", "cuda:1", "cuda:2")
    ]
    problem = problem_from_digraph(graph, devices, chunks_per_device=rng.choice([1, 1, 2]))
    found = solve(problem, SolveLimits(time_limit_s=10, workers=1, deterministic=True))
    return [found.plan] if found.plan is not None else []


def check_seeds(seeds, programs, **options):
    """Check the programs of all `seeds`; return how many ended in which way."""
    ends = Counter()
    for seed in seeds:
        ends[check_program(programs(seed), **options)] += 1
    return ends
