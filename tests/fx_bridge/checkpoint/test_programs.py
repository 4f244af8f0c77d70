"""Stages as programs of torch.export: loaded and run one after another, they are the model."""

import json
import random
import resource
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from fx_bridge.capture.graph import capture
from fx_bridge.checkpoint.programs import (
    load_stage_program,
    load_stage_programs,
    run_stage_programs,
    save_stage_programs,
)
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.colocation import colocation_groups
from solver import PartitionError, PartitionPlan
from tests.support.dispatch_models import TOKENS, Net
from tests.support.modules import module_with
from tests.support.random_plans import random_plan

pytestmark = pytest.mark.filterwarnings("ignore")


class Branches(nn.Module):
    """Results in containers, a skip over stages, a buffer, tied weights and an input read late."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4).eval()

    def forward(self, x, other):
        y = self.norm(self.first(x).relu())
        wide = y[:, None].expand(-1, 3, -1)
        z = self.second(y.tanh()) + wide.sum(1) + other
        return {"z": z, "all": [x, y, (z * 2).chunk(2, dim=1)]}


PAIR = (torch.randn(3, 4), torch.randn(3, 4))


def cut(captured, *positions):
    names = [node.name for node in captured.operators]
    stage = {n: sum(at >= position for position in positions) for at, n in enumerate(names)}
    order = tuple(f"cuda:{number}" for number in range(len(positions) + 1))
    return PartitionPlan({name: order[number] for name, number in stage.items()}, order)


@pytest.mark.parametrize(("model", "args"), [(Branches().eval(), PAIR), (Net(2), TOKENS)])
def test_the_chain_of_programs_computes_what_the_model_does(model, args, tmp_path):
    captured = capture(model, args)
    groups = colocation_groups(captured)
    names = [node.name for node in captured.graph.find_nodes(op="placeholder")]
    with torch.no_grad():
        expected = pytree.tree_leaves(model(*args))
    for seed in range(2):
        plan = random_plan(captured, groups, 3, random.Random(seed))
        split = split_by_plan(captured, plan)
        folder = tmp_path / str(seed)
        programs = save_stage_programs(split, folder)
        assert programs == load_stage_programs(folder)
        assert [stage.device for stage in programs.stages] == [s.device for s in plan.stages]
        assert programs.inputs == tuple(names)
        with torch.no_grad():
            found = run_stage_programs(folder, dict(zip(names, args, strict=True)))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        # Other inputs of the same shapes, which are no constants of the programs.
        others = [a.flip(0) for a in args]
        with torch.no_grad():
            found = run_stage_programs(folder, dict(zip(names, others, strict=True)))
            again = pytree.tree_leaves(model(*others))
        assert all(torch.allclose(a, b) for a, b in zip(found, again, strict=True))
        held = [set(load_stage_program(folder, stage).state_dict) for stage in programs.stages]
        assert held == [set(stage.state_dict()) for stage in split.children()]


@pytest.mark.nightly
def test_files_need_neither_the_model_nor_this_project(tmp_path):
    captured = capture(Net(1), TOKENS)
    save_stage_programs(split_by_plan(captured, cut(captured, 4)), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "programs.json",
        "stage_0.pt2",
        "stage_1.pt2",
    ]
    script = (
        "import json, sys, torch\n"
        "index = json.load(open('programs.json'))\n"
        f"values = {{index['inputs'][0]: torch.tensor({TOKENS[0].tolist()})}}\n"
        "for stage in index['stages']:\n"
        "    module = torch.export.load(stage['file']).module()\n"
        "    result = module(*[values[name] for name in stage['reads']])\n"
        "    results = result if stage['returns_tuple'] else [result]\n"
        "    values.update(zip(stage['returns'], results))\n"
        "assert not {'fx_bridge', 'solver', 'tests.support.dispatch_models'} & set(sys.modules)\n"
        "print(json.dumps([values[name].tolist() for name in index['outputs']]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = torch.tensor(json.loads(done.stdout.splitlines()[-1])[0])
    torch.testing.assert_close(found, captured.module(*TOKENS))


def test_models_without_weights_give_programs_without_weights(tmp_path):
    with torch.device("meta"):
        model = Net(1)
    captured = capture(model, TOKENS)
    programs = save_stage_programs(split_by_plan(captured, cut(captured, 4)), tmp_path)
    program = load_stage_program(tmp_path, programs.stages[0])
    assert {tensor.device.type for tensor in program.state_dict.values()} == {"meta"}


def test_what_was_there_is_replaced_or_stays(tmp_path):
    captured = capture(Net(1), TOKENS)
    save_stage_programs(split_by_plan(captured, cut(captured, 2, 6)), tmp_path)
    programs = save_stage_programs(split_by_plan(captured, cut(captured, 4)), tmp_path)
    assert len(load_stage_programs(tmp_path).stages) == 2
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["programs.json", "stage_0.pt2", "stage_1.pt2"]
    path = tmp_path / programs.stages[1].file
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(PartitionError, match="was altered: its SHA-256 is"):
        run_stage_programs(tmp_path, {"tokens": TOKENS[0]})
    path.unlink()
    with pytest.raises(PartitionError, match=r"there is no file .*stage_1\.pt2"):
        load_stage_program(tmp_path, programs.stages[1])


def test_a_full_disk_is_one_line_and_leaves_what_was_there(tmp_path):
    """Torch's own writer of files would end the process."""
    captured = capture(Net(1), TOKENS)
    split = split_by_plan(captured, cut(captured, 4))
    save_stage_programs(split, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(PartitionError, match=r"cannot write to the folder .*: File too large"):
            save_stage_programs(split, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_wrong_inputs_and_folders_are_refused(tmp_path):
    captured = capture(Net(1), TOKENS)
    split = split_by_plan(captured, cut(captured, 4))
    with pytest.raises(PartitionError, match=r"has no programs\.json; write it with save_stage"):
        load_stage_programs(tmp_path)
    save_stage_programs(split, tmp_path)
    with pytest.raises(PartitionError, match="input 'tokens' is missing; the inputs are tokens"):
        run_stage_programs(tmp_path, {})
    with pytest.raises(PartitionError, match="input 'mask' is unknown; the inputs are tokens"):
        run_stage_programs(tmp_path, {"tokens": TOKENS[0], "mask": None})
    with pytest.raises(PartitionError, match="the module has no stages; give what split_by_plan"):
        save_stage_programs(captured.module, tmp_path)
    with pytest.raises(PartitionError, match="folder is 3; write the name of a folder"):
        save_stage_programs(split, 3)
    (tmp_path / "file").touch()
    with pytest.raises(PartitionError, match=r"cannot make the folder .*; write another path"):
        save_stage_programs(split, tmp_path / "file")
    index = json.loads((tmp_path / "programs.json").read_text())
    index["stages"][0]["file"] = "../stage_0.pt2"
    (tmp_path / "programs.json").write_text(json.dumps(index))
    with pytest.raises(PartitionError, match=r"is not in .*; write its name alone"):
        run_stage_programs(tmp_path, {"tokens": TOKENS[0]})
    index["stages"][0].pop("reads")
    (tmp_path / "programs.json").write_text(json.dumps(index))
    with pytest.raises(PartitionError, match=r"programs\.json: stages\[0\]: reads is missing"):
        load_stage_programs(tmp_path)


def test_a_returned_weight_is_refused(tmp_path):
    def forward(self, x):
        return self.inner(x).relu(), self.inner.weight

    captured = capture(module_with(forward, inner=nn.Linear(4, 4)), (torch.ones(1, 4),))
    with pytest.raises(PartitionError, match=r"returns its weight 'inner\.weight' as it is"):
        save_stage_programs(split_by_plan(captured, cut(captured, 1)), tmp_path)


def selects(self, x):
    return self.second(self.first(x[x[:, 0] > 0]).relu())


def test_values_whose_size_depends_on_others_stay_in_their_stage(tmp_path):
    captured = capture(
        module_with(selects, first=nn.Linear(4, 4), second=nn.Linear(4, 4)), (torch.randn(6, 4),)
    )
    names = [node.name for node in captured.operators]
    at = names.index("relu")
    plan = PartitionPlan(
        {name: "a" if index < at else "b" for index, name in enumerate(names)}, ("a", "b")
    )
    match = "reads 'linear', whose size depends on the values of tensors"
    with pytest.raises(PartitionError, match=match):
        save_stage_programs(split_by_plan(captured, plan), tmp_path / "programs")
    whole = PartitionPlan(dict.fromkeys(names, "a"), ("a",))
    save_stage_programs(split_by_plan(captured, whole), tmp_path / "programs")
    for count in (0, 1, 3):
        x = torch.full((6, 4), -1.0).index_fill(0, torch.arange(count), 1.0)
        (found,) = run_stage_programs(tmp_path / "programs", {"x": x})
        assert torch.equal(found, captured.source(x))
