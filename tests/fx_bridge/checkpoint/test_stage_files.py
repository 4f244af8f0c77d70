import copy
import functools
import json
import os
import random
import signal
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from fx_bridge.capture.graph import capture
from fx_bridge.checkpoint import stages as stage_files
from fx_bridge.checkpoint.manifest import check_manifest, check_plan, load_manifest
from fx_bridge.checkpoint.stages import load_inputs, load_stage_weights, save_stages
from fx_bridge.checkpoint.tensors import restored, slots_of, stored
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.colocation import colocation_groups
from solver import PartitionError, PartitionPlan
from tests.support.modules import module_with
from tests.support.problem_counts import some
from tests.support.random_plans import random_plan
from tests.support.refusals import REMOVE, changed, refused
from tests.support.split_checks import in_one


class Everything(nn.Module):
    """Tensors of every kind that a stage may own."""

    def __init__(self, constant):
        super().__init__()
        self.constant = constant
        self.embed = nn.Embedding(7, 6)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight
        self.convolution = nn.Conv1d(6, 6, 3, padding=1)
        self.convolution.weight = nn.Parameter(
            self.convolution.weight.detach().permute(2, 1, 0).contiguous().permute(2, 1, 0)
        )
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("mask", torch.tensor([True, False] * 3), persistent=False)
        self.register_buffer("scale", torch.tensor(1.5, dtype=torch.bfloat16))
        self.register_buffer("nothing", torch.empty(0, 6))
        self.register_buffer("rotation", torch.tensor([1j, 1 + 2j], dtype=torch.complex64))
        self.register_buffer("wide", torch.arange(6.0).expand(4, 6))
        flat = torch.randn(12)
        self.register_buffer("left", flat[:8])
        self.register_buffer("right", flat[4:])
        self.frozen = nn.Parameter(torch.randn(6), requires_grad=False)

    def forward(self, tokens):
        x = self.embed(tokens) * self.frozen
        if self.constant:
            x = x + torch.tensor([0.5, 1.0, 2.0, 3.0, 5.0, 8.0])
        x = self.norm(self.convolution(x.transpose(1, 2))).transpose(1, 2)
        x = torch.where(self.mask, x, x * self.scale.float()) + self.wide[0]
        x = x * self.left.sum() + self.right.prod() * self.rotation.real.sum()
        return self.head(x), torch.cat([x.flatten(0, 1), self.nothing]).sum()


def model_of(kind, on_meta=False):
    torch.manual_seed(3)
    with torch.device("meta" if on_meta else "cpu"):
        if kind != "chain":
            return Everything(kind == "constant").eval()
        return nn.Sequential(
            nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)
        ).eval()


ROW = torch.ones(4)
INPUTS = {"everything": (torch.arange(12).reshape(2, 6) % 7,), "chain": (torch.ones(3, 4),)}
INPUTS["constant"] = INPUTS["everything"]


@functools.cache
def captured_model(kind):
    return capture(model_of(kind), INPUTS[kind])


def position(split, name):
    stage = split.get_submodule(name)
    order = split.meta["plan"].device_order
    return stage.meta["chunk"] * len(order) + order.index(stage.meta["device"])


@pytest.fixture
def chain(tmp_path):
    """A saved chain of three stages: its captured graph, split and folder."""
    captured = captured_model("chain")
    devices = ["a", "a", "b", "b", "c"]
    assignment = {n.name: d for n, d in zip(captured.operators, devices, strict=True)}
    split = split_by_plan(captured, PartitionPlan(assignment, ("a", "b", "c")))
    folder = tmp_path / "stages"
    save_stages(split, captured, folder, model_name="chain")
    return captured, split, folder


@pytest.mark.parametrize(
    ("kind", "on_meta"),
    [("everything", True), ("constant", False), ("chain", True)],
)
@pytest.mark.parametrize(("seed", "chunks"), [(0, 1), (1, 1), (2, 2), (3, 3)])
def test_loaded_stages_compute_what_the_model_computes(tmp_path, kind, seed, chunks, on_meta):
    captured = captured_model(kind)
    groups = colocation_groups(captured)
    plan = random_plan(captured, groups, 2, random.Random(seed), chunks=chunks)
    split = split_by_plan(captured, plan)
    save_stages(split, captured, tmp_path)
    other = copy.deepcopy(split)
    for name in other.meta["stages"]:
        for slot in slots_of(other.get_submodule(name)).values():
            # Whatever numbers a stage has, or none, those of its file replace them.
            old = slot.tensor
            empty = torch.zeros_like(old, device="meta" if on_meta else "cpu")
            is_parameter = isinstance(old, nn.Parameter)
            slot.fill(nn.Parameter(empty, old.requires_grad) if is_parameter else empty)
    for name in other.meta["stages"]:
        stage = other.get_submodule(name)
        before = {path: slot.tensor for path, slot in slots_of(stage).items()}
        loaded_bytes = load_stage_weights(stage, tmp_path, position(other, name))
        after = {path: slot.tensor for path, slot in slots_of(stage).items()}
        memories = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in after.values()}
        assert loaded_bytes == sum(memory.nbytes() for memory in memories.values())
        for path, old in before.items():
            assert after[path].requires_grad == old.requires_grad, path
            assert isinstance(after[path], nn.Parameter) == isinstance(old, nn.Parameter), path
            original = slots_of(split.get_submodule(name))[path].tensor
            assert torch.equal(after[path], original), path
            assert after[path].stride() == original.stride(), path
    expected, found = (tree_leaves(m(*INPUTS[kind])) for m in (model_of(kind), other))
    assert len(expected) == len(found) and all(map(torch.equal, expected, found))


def random_tensors(rng):
    """A module of random tensors, some of which overlap."""
    module = nn.Module()
    kinds = (torch.float32, torch.float64, torch.int8, torch.bool, torch.bfloat16, torch.int64)
    for base in range(rng.randint(1, 3)):
        memory = torch.randint(0, 2, (rng.randint(1, 60),)).to(rng.choice(kinds))
        for number in range(rng.randint(1, 4)):
            offset = rng.randrange(len(memory))
            sizes, strides, last = [], [], offset
            for _ in range(rng.randint(0, 3)):
                size, stride = rng.randint(0, 4), rng.randint(0, 5)
                while last + (size - 1) * stride >= len(memory) and size > 1:
                    size -= 1
                last += max(0, size - 1) * stride
                sizes.append(size)
                strides.append(stride)
            view = memory.as_strided(sizes, strides, offset)
            module.register_buffer(f"b{base}_{number}", view)
            if rng.random() < 0.3:
                module.register_buffer(f"tied{base}_{number}", view)
    return module


@pytest.mark.parametrize("seed", some(60, of=60))
def test_random_tensors_come_back_with_their_overlaps(seed):
    module = random_tensors(random.Random(seed))
    content = stored(module, "stage 0")
    # As from a file: tensors that have nothing in common.
    apart = {name: tensor.clone() for name, tensor in content.tensors.items()}
    found = restored(apart, content.aliases, content.views)
    original = dict(module.named_buffers(remove_duplicate=False))
    assert set(found) == set(original)
    for name, tensor in original.items():
        assert torch.equal(found[name], tensor) and found[name].dtype is tensor.dtype, name
        for other, its in original.items():
            assert (its is tensor) == (found[other] is found[name])
    for name, tensor in original.items():
        if not tensor.numel():
            continue
        # A write is seen in the same elements of the same others.
        flipped = 1 - tensor.flatten()[0].to(torch.int8)
        index = (0,) * tensor.dim()
        tensor[index] = flipped
        found[name][index] = flipped
        for other, its in original.items():
            assert torch.equal(found[other], its), (name, other)


def saved(value, folder):
    """The split of a model whose weights all are a value, and a function that saves it."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    for layer in (model[0], model[2]):
        nn.init.constant_(layer.weight, value)
    captured = capture(model, (torch.full((1, 4), value),))
    plan = PartitionPlan({"linear": "a", "relu": "a", "linear_1": "b"}, ("a", "b"))
    split = split_by_plan(captured, plan)
    return split, lambda: save_stages(split, captured, folder)


def killed_at(moment, save):
    """Save in a process that is killed before one of its steps; return if it came to the end."""
    child = os.fork()
    if child == 0:
        left = iter(range(moment))

        def dying(function):
            def call(*args, **kwargs):
                if next(left) == moment - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **kwargs)

            return call

        try:
            torch.set_num_threads(1)
            owners = (stage_files, "save_file write_text_atomically"), (os, "fsync replace")
            for owner, names in (*owners, (Path, "unlink replace rename")):
                for name in names.split():
                    setattr(owner, name, dying(getattr(owner, name)))
            save()
        finally:
            os._exit(0)
    return os.WIFEXITED(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_killed_run_never_looks_complete(tmp_path, step):
    (old, save_old), (_, save_new) = (saved(value, tmp_path) for value in (1.0, 2.0))
    outcomes = []
    for moment in range(1, 60, step):
        save_old()
        is_complete = killed_at(moment, save_new)
        try:
            values = set()
            for position, name in enumerate(old.meta["stages"]):
                stage = old.get_submodule(name)
                load_stage_weights(stage, tmp_path, position)
                weights = [p for path, p in stage.named_parameters() if path.endswith("weight")]
                values.update(weight.flatten()[0].item() for weight in weights)
            values.add(load_inputs(tmp_path)[0][0][0, 0].item())
            assert len(values) == 1, values
            outcomes.append("old" if values == {1.0} else "new")
        except PartitionError as error:
            assert "interrupted" in str(error), error
            outcomes.append("none")
        if is_complete:
            break
    # What was there, then nothing, then what is new: never a mixture.
    assert list(dict.fromkeys(outcomes)) == ["old", "none", "new"]
    assert outcomes == sorted(outcomes, key=["old", "none", "new"].index)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_missing_or_altered_file_is_named(chain):
    _, split, folder = chain
    path = folder / "stage_1.safetensors"
    content = path.read_bytes()
    kept = split.submod_1.get_parameter("2.weight").clone()
    altered = content[:-1] + bytes([content[-1] ^ 1])
    cases = {"was altered": altered, "bytes but the manifest says": content[:-4]}
    for text, data in {**cases, "there is no file": None}.items():
        path.unlink() if data is None else path.write_bytes(data)
        with refused(text, path="stage_1.safetensors"):
            load_stage_weights(split.submod_1, folder, 1)
    assert torch.equal(split.submod_1.get_parameter("2.weight"), kept)


def test_a_stage_of_another_model_is_refused(chain):
    _, split, folder = chain
    with refused("no tensor '0.bias'"):
        load_stage_weights(split.submod_1, folder, 0)
    with pytest.raises(PartitionError, match="positions are 0, 1, 2"):
        load_stage_weights(split.submod_1, folder, 3)
    stage = copy.deepcopy(split.submod_1)
    stage.get_submodule("2").weight = nn.Parameter(torch.ones(8, 4))
    with pytest.raises(PartitionError, match=r"float32\[8, 8\] in the file but float32\[8, 4\]"):
        load_stage_weights(stage, folder, 1)
    stage = copy.deepcopy(split.submod_1)
    stage.get_submodule("2").more = nn.Parameter(torch.ones(1))
    with pytest.raises(PartitionError, match=r"has no tensor '2\.more'"):
        load_stage_weights(stage, folder, 1)


def test_ties_that_the_files_do_not_have_are_refused(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    captured = capture(model, (torch.ones(1, 4),))
    split = in_one(captured)
    save_stages(split, captured, tmp_path)
    stage = split.submod_0
    stage.get_submodule("1").weight = stage.get_submodule("0").weight
    with refused("'0.weight' and '1.weight' are one tensor"):
        load_stage_weights(stage, tmp_path, 0)


def test_another_graph_is_told_by_its_first_difference(chain):
    captured, _, folder = chain
    manifest = load_manifest(folder)
    check_manifest(manifest, captured)
    on_meta = capture(model_of("chain", on_meta=True), INPUTS["chain"])
    check_manifest(manifest, on_meta)

    def check(says, model, args=INPUTS["chain"]):
        with refused("another graph", says):
            check_manifest(manifest, capture(model, args))

    layers = list(model_of("chain"))
    other = nn.Sequential(*layers[:3], nn.GELU(), layers[4])
    check("'tanh' stands there where 'gelu'", other)
    check("'input_1'", model_of("chain"), (torch.ones(5, 4),))
    check("float64", model_of("chain").double(), (torch.ones(3, 4).double(),))


def test_another_plan_is_told_by_its_first_difference(chain):
    _, split, folder = chain
    manifest = load_manifest(folder)
    plan = split.meta["plan"]
    check_plan(manifest, plan)
    moved = PartitionPlan({**plan.assignment, "relu": "b"}, plan.device_order)
    with refused("'relu' is on a there but on b"):
        check_plan(manifest, moved)
    later = PartitionPlan(plan.assignment, plan.device_order, {"linear_2": 1})
    with pytest.raises(PartitionError, match=r"on c there but on c \(chunk 1\)"):
        check_plan(manifest, later)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("schema",), "fxpartition.plan", "schema is 'fxpartition.plan'"),
        (("version",), 2, "version is 2"),
        (("extra",), 1, "'extra' is unknown"),
        (("nodes", "relu"), "something", "graph_sha256 is not that of nodes"),
        (("graph_sha256",), "12", "graph_sha256 is '12'"),
        (("plan", "device_order"), ["a"], "plan: device_order is"),
        (("plan", "assignment", "nobody"), "a", "plan: 'nobody' is not one of the nodes"),
        (("stages", 1, "file"), "../stage_1.safetensors", "stages[1]: file is"),
        (("stages", 1, "sha256"), "x" * 64, "stages[1]: sha256 is"),
        (("stages", 1, "device"), "z", "stages[1]: device is 'z'; the plan says 'b'"),
        (("stages", 2, "position"), 1, "stages[2]: position is 1; the plan says 2"),
        (("stages", 1), REMOVE, "stages has 2 entries"),
        (("stages", 0, "views"), {"x": {"of": "y"}}, "views['x']: offset is missing"),
        (("inputs", "file"), "/etc/passwd", "inputs: file is"),
    ],
)
def test_a_wrong_manifest_names_the_field(chain, path, value, message):
    _, _, folder = chain
    file = folder / "manifest.json"
    file.write_text(json.dumps(changed(json.loads(file.read_text()), path, value)))
    with refused(message, path="manifest.json"):
        load_manifest(folder)


def test_a_folder_without_manifest_is_refused(chain, tmp_path):
    _, split, folder = chain
    with pytest.raises(PartitionError, match="no manifest"):
        load_manifest(tmp_path / "nowhere")
    (folder / "manifest.json").unlink()
    with pytest.raises(PartitionError, match="interrupted"):
        load_stage_weights(split.submod_1, folder, 1)
    (folder / "manifest.json").write_text("{")
    with refused("not valid JSON"):
        load_manifest(folder)


def test_a_wrong_view_or_alias_is_named(chain):
    _, split, folder = chain
    file = folder / "manifest.json"
    original = file.read_text()
    view = {"of": "2.weight", "offset": 60, "size": [8], "stride": [1]}
    for field, value, message in (
        ("aliases", {"2.bias": "nothing"}, "tied to 'nothing'"),
        ("views", {"2.bias": view}, "elements that '2.weight' does not have"),
        ("views", {"2.bias": {**view, "of": "nothing"}}, "view of 'nothing'"),
        ("views", {"2.bias": {**view, "size": []}}, "view of '2.weight'"),
    ):
        data = json.loads(original)
        data["stages"][1][field] = value
        file.write_text(json.dumps(data))
        with refused(message):
            load_stage_weights(split.submod_1, folder, 1)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"one": torch.ones(3, dtype=torch.complex128)}, ["'one' is complex128"]),
        ({"one": torch.eye(3).to_sparse()}, ["'one' is sparse"]),
        ({"one": torch.ones(3, device="meta")}, ["'one' is on the meta device"]),
        ({"a": ROW, "b": ROW.view(torch.int32)}, ["'a' ", " and 'b' ", " share memory"]),
    ],
)
def test_what_cannot_be_stored_is_named(tensors, message):
    buffers = {name: nn.Buffer(tensor) for name, tensor in tensors.items()}
    module = module_with(lambda self: None, **buffers)
    with refused(*message, starts="stage 4"):
        stored(module, "stage 4")


def test_a_folder_of_others_is_left_alone(chain, tmp_path):
    captured, split, _ = chain
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("…")
    with pytest.raises(PartitionError, match=r"other files, such as thesis.tex"):
        save_stages(split, captured, tmp_path / "mine")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "manifest.json").write_text('{"name": "app"}')
    with pytest.raises(PartitionError, match="of something else"):
        save_stages(split, captured, tmp_path / "theirs")
    with pytest.raises(PartitionError, match="one of another graph"):
        save_stages(split, capture(nn.ReLU(), (torch.ones(1),)), tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "stages", "theirs"]


def test_a_folder_is_replaced_whole(chain):
    captured, _, folder = chain
    (folder / "notes.txt").write_text("kept")
    save_stages(split := in_one(captured), captured, folder, with_inputs=False)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["manifest.json", "notes.txt", "stage_0.safetensors"]
    assert load_inputs(folder) is None
    assert load_manifest(folder).plan == split.meta["plan"]


def test_a_device_that_is_not_there_is_named(chain):
    _, split, folder = chain
    for device in ("cuda:99", "no-such-device"):
        with refused(device):
            load_stage_weights(split.submod_1, folder, 1, device)


def test_a_weight_that_is_returned_itself_is_refused(tmp_path):
    weight = nn.Parameter(torch.ones(4, 4))
    model = module_with(lambda self, x: (x @ self.weight, self.weight), weight=weight)
    captured = capture(model, (torch.ones(1, 4),))
    with refused("returns 'weight' itself"):
        save_stages(in_one(captured), captured, tmp_path / "new")
    assert not (tmp_path / "new").exists()
