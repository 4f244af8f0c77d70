"""Random modules and random plans: equal to the model in everything.

Outputs, buffers, parameters, inputs and random numbers are compared to the bit: a split runs
the same kernels in an order that differs only where nobody can tell. Gradients have the
tolerance of check_equivalence, for the reason given there.

What torch itself captures wrongly or not at all is shown at the end, once for each.
"""

import pytest
import torch

import tests.support.program_checks as program_checks
from fx_bridge.capture.graph import capture
from fx_bridge.equivalence.check import check_equivalence
from solver import PartitionError
from tests.support.problem_counts import counts
from tests.support.program_checks import REFUSALS, check_seeds
from tests.support.random_modules import ClassSource, Program, random_module, random_program


@counts(10, 30)
def test_exported_programs(count):
    ends = check_seeds(range(count - count // 10), random_program)
    ends += check_seeds(range(count - count // 10, count), random_program, solver=True)
    assert ends.total() == count
    assert ends["compared"] >= count * 3 // 5, ends
    assert ends["compared"] + ends["compared without gradients"] >= count - count // 15, ends


@pytest.mark.nightly
@pytest.mark.parametrize("start", [0, *range(1000, 2500, 100)])
def test_many_exported_programs(start):
    ends = check_seeds(range(start, start + 90), random_program, plans=4)
    ends += check_seeds(range(start + 90, start + 100), random_program, plans=2, solver=True)
    assert ends["compared"] + ends["compared without gradients"] >= 90, ends


def test_a_seed_gives_one_program_and_leaves_the_random_state():
    state = torch.get_rng_state()
    program = random_program(7)
    assert torch.equal(state, torch.get_rng_state())
    assert program.source == random_program(7).source
    assert program.source != random_program(8).source
    model, args, kwargs = random_module(7)
    again = program.build()[0]
    assert check_equivalence(model, again, args, kwargs).equal


PARTS = """
chunk( unbind( index_copy_ out= register_buffer BatchNorm LSTM no_grad autocast dropout rand_like
.shape[0] requires_grad_(False) persistent=False MultiheadAttention weight_norm spectral_norm Pair(
bfloat16() padding_idx self.a.b submod_0 topk requires_grad=True copy_( inplace=True
"""


def test_programs_contain_what_they_are_for():
    text = "\n".join(random_program(seed).source for seed in range(100))
    assert [part for part in PARTS.split() if part not in text] == []


def _program(*statements, results=("v3",)):
    model = ClassSource("Model", ("x0",), ("self.m1 = nn.Linear(4, 4)",), statements, results)
    return Program(0, (model,), "(torch.ones(2, 4),)", "{}", ("model.eval()",))


def test_a_difference_prints_the_program(monkeypatch):
    def wrong(captured, plan):
        split = program_checks_split(captured, plan)
        split.register_forward_hook(lambda _, args, output: output + 1)
        return split

    program_checks_split = program_checks.split_by_plan
    monkeypatch.setattr(program_checks, "split_by_plan", wrong)
    with pytest.raises(AssertionError, match=r"(?s)output differs in 8 .*v3 = self.m1\(x0\)"):
        program_checks.check_program(_program("v2 = x0.sin()", "v3 = self.m1(x0) * v2"))


# Which symbolic tracing does not capture.
LOOP = "for row in x0:\n    pass"
REGION = "with torch.no_grad():\n    v2 = v1 * 2"
RECORDED = {
    "name of a region": ["v1 = x0 + 1", REGION, "v3 = v2 * self.submod_1"],
    "shape of an input": ["x0.unsqueeze_(0)", LOOP, "v3 = x0 * 2"],
    # Strict export captures this, but not the write to data.
    "shape of a view": ["v1 = x0[0]", "v1.t_()", LOOP, "self.b.data.add_(1)", "v3 = x0 * 2"],
    "data of a tensor": ["v3 = x0.data * 2", LOOP],
}


def _single(lines, given="torch.ones(2, 4)"):
    members = "self.submod_1 = nn.Parameter(torch.ones(4))", "self.b = nn.Buffer(torch.ones(4))"
    model = ClassSource("Model", ("x0",), members, tuple(lines), ("v3",))
    return Program(0, (model,), f"({given},)", "{}").build()


@pytest.mark.parametrize("reason", RECORDED)
def test_what_torch_export_does_not_capture_is_recorded_as_it_runs(reason):
    given = (
        "torch.ones(2, 3, 4).transpose(0, 1)" if reason == "shape of a view" else "torch.ones(2, 4)"
    )
    module, args, kwargs = _single(RECORDED[reason], given)
    captured = capture(module, args, kwargs)
    gradients = reason == "name of a region"
    report = check_equivalence(module, captured.module, args, kwargs, gradients=gradients)
    assert report.equal, report.differences


def test_a_program_without_operators_is_refused():
    with pytest.raises(PartitionError, match=REFUSALS["no operators"]):
        capture(*_single(["v3 = x0"]))
