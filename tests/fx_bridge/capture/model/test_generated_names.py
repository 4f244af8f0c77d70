"""Arguments and parts of a model that are called like something else in generated code."""

import copy
import pickle

import pytest
import torch
from torch import nn

from fx_bridge import capture
from fx_bridge.checkpoint.stages import save_stages
from fx_bridge.placement.model import place
from tests.support.modules import module_with
from tests.support.refusals import refused
from tests.support.split_checks import in_halves

X, Y = torch.randn(4, 6), torch.randn(4, 6)
NAMES = (
    *("device", "torch", "inf", "nan", "NoneType", "fx_pytree", "pytree", "self"),
    *("getattr", "slice", "type", "float", "print", "lambda_", "globals"),
    *("submod_0", "submod_1", "submod_0_1", "fxp_weight_0", "device_1", "device_argument"),
    *("linear", "relu", "arange", "output", "layer", "layer_weight", "x_1", "root", "forward"),
    *("math", "operator", "flatten", "fx_bridge_placement_transfers_move", "args", "kwargs"),
)
TENSOR = """
def forward(this, x, {0}):
    h = arange(6, device="cpu") * this.layer(x)[:, 0:6]
    return getattr(this, "0")(masked(h).relu()) + {0}
"""
IN_A_DICT = TENSOR.replace("+ {0}", "+ {0}['linear']")
KEYWORD = """
def forward(this, x, *, {0}="cpu"):
    h = this.layer(x.to({0}))
    return getattr(this, "0")(masked(arange(6, device={0}) * h))
"""


def masked(h):
    return torch.where(h < 5, h, torch.full_like(h, float("-inf"))).exp()


def model_of(code, name):
    # What the model itself calls is no argument of it.
    names = {"arange": torch.arange, "masked": masked}
    code = code.replace("getattr(this", "part(this")
    if name == "arange":
        code, names = code.replace("arange(6", "count(6"), {**names, "count": torch.arange}
    own = {}
    exec(code.format(name), {**names, "part": getattr}, own)

    class Model(nn.Module):
        forward = own["forward"]

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.add_module("0", nn.Linear(6, 6))

    return Model()


KINDS = {"tensor": TENSOR, "dict": IN_A_DICT, "keyword": KEYWORD}


# Each name in one kind by default, in all with --deep.
@pytest.mark.parametrize(
    ("name", "code"),
    [
        pytest.param(name, code, id=f"{name}-{kind}", marks=[pytest.mark.deep] * ((at + k) % 3 > 0))
        for at, name in enumerate(NAMES)
        for k, (kind, code) in enumerate(KINDS.items())
    ],
)
def test_an_argument_may_have_any_name(name, code, tmp_path):
    if name == "self" and code == KEYWORD:
        pytest.skip("no call of a module can name it")
    model = model_of(code, name)
    given = {TENSOR: (X, Y), IN_A_DICT: (X, {"linear": Y}), KEYWORD: (X,)}[code]
    named = {name: "cpu"} if code == KEYWORD else {}
    captured = capture(model, given, named)
    expected = model(*given, **named)
    torch.testing.assert_close(captured.module(*given, **named), expected)
    split = in_halves(captured)
    placed = place(split)
    for module in (split, placed, copy.deepcopy(split), pickle.loads(pickle.dumps(split))):
        torch.testing.assert_close(module(*given, **named), expected)
    if name != "self" and not named:
        torch.testing.assert_close(placed(X, **{name: given[1]}), expected)
    save_stages(split, captured, tmp_path / "tensors")
    loaded = place(split, weights=tmp_path / "tensors")
    torch.testing.assert_close(loaded(*given, **named), expected)


def test_stages_have_names_that_nothing_else_has():
    split = in_halves(capture(model_of(TENSOR, "submod_0"), (X, Y)))
    assert list(split.meta["stages"]) == ["submod_stage_0", "submod_stage_1"]


def test_a_symbolic_trace_has_arguments_with_defaults():
    def forward(self, x, device="cpu"):
        return torch.arange(6, device="cpu") * x.to(device)

    model = module_with(forward)
    captured = capture(torch.fx.symbolic_trace(model), (X, "cpu"))
    split = in_halves(captured)
    for given in ((X,), (X, "cpu")):
        assert torch.equal(place(split)(*given), model(X))


@pytest.mark.parametrize("name", ["graph", "meta", "code", "recompile", "_code", "devices"])
def test_a_part_with_the_name_of_an_attribute_of_stages_is_refused(name):
    model = nn.Sequential()
    model.add_module(name, nn.Linear(6, 6))
    for given in ((model, (X,)), (torch.export.export(model, (X,)),)):
        with refused(f"has '{name}.weight', ", " rename that part"):
            capture(*given)
