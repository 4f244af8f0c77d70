"""Ways of capturing in turn: what is compared, what is refused, and that nothing else is said."""

import logging
import secrets
import warnings

import pytest
import torch
from torch import nn

from fx_bridge import capture
from solver import PartitionError
from tests.support.modules import module_with


def test_a_graph_that_computes_something_else_is_passed_over():
    model = module_with(lambda self, x: x.sin() if torch.compiler.is_exporting() else x.cos())
    x = torch.randn(3)
    assert not capture(model, (x,)).module(x).equal(x.cos())
    captured = capture(model, (x,), check=True)
    assert captured.module(x).equal(x.cos())
    assert captured.note.startswith("export computes something else: output differs in 3 of 3")


def test_a_model_that_no_graph_equals_is_refused():
    drawing = module_with(lambda self, x: x * secrets.randbelow(1 << 60))
    with pytest.raises(PartitionError, match=r"computes something else: output differs .*check"):
        capture(drawing, (torch.ones(3),), check=True)


def test_gradients_are_compared_in_training():
    def forward(self, x):
        y = self.linear(x)
        return y + (y.detach() if torch.compiler.is_exporting() else y)

    model = module_with(forward, linear=nn.Linear(3, 3))
    x = torch.randn(2, 3)
    assert "computes something else" not in capture(model.eval(), (x,), check=True).note
    assert "the gradient of" in capture(model.train(), (x,), check=True).note


@pytest.mark.parametrize(
    ("model", "check", "message"),
    [
        (nn.ReLU(), 1, "check is 1; write True or False"),
        (
            nn.Linear(3, 3, device="meta"),
            True,
            "which has no values on the meta device; leave it out",
        ),
        (torch.fx.symbolic_trace(nn.ReLU()), True, "check=True needs the module itself, not a"),
    ],
    ids=["number", "meta", "graph"],
)
def test_a_check_needs_a_module_that_runs(model, check, message):
    with pytest.raises(PartitionError, match=message):
        capture(model, (torch.ones(2, 3),), check=check)


class Failing(nn.Module):
    """Raises what it is given where the capture, and nothing before, looks at it."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def named_modules(self, *args, **kwargs):
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return super().named_modules(*args, **kwargs)

    def forward(self, x):
        return x * 2


def test_whatever_a_capture_meets_is_one_refusal():
    with pytest.raises(PartitionError, match=r"cannot capture Failing: it fails .*ZeroDivision"):
        capture(Failing(ZeroDivisionError("by a library\nof another")), (torch.ones(3),))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_is_no_fault_of_the_model_passes(error):
    with pytest.raises(error):
        capture(Failing(error()), (torch.ones(3),))


def test_torch_says_nothing_during_a_capture(capfd, caplog):
    def loud(self, x):
        logging.getLogger("torch.fx").error("a trace of torch")
        warnings.warn("a warning of tracing", stacklevel=1)
        return x.view(5)

    disabled = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(PartitionError):
            capture(module_with(loud), (torch.ones(3),))
    assert logging.root.manager.disable == disabled
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert capfd.readouterr() == ("", "")
