import pytest
import torch
from torch import nn

from fx_bridge.capture.graph import capture, placeholder_values
from fx_bridge.costs.allocations import record_allocations
from tests.support.storage_tracker import track_forward


def test_spans_count_what_is_held_and_what_is_only_passing():
    earlier = torch.ones(10_000)
    with record_allocations() as record:
        kept = torch.ones(250)
        record.begin("first")
        passing = torch.ones(1000)
        del passing
        made = torch.ones(500)
        record.end()
        record.begin("second")
        del earlier  # from before the recording: not known to it
        del kept
        other = torch.ones(100)
        record.end()
        del made, other
    first, second = record.spans
    assert (first.name, second.name) == ("first", "second")
    assert sorted(first.held.values()) == [1000]
    assert first.peak_bytes == 1000 + 4000
    # 4000 bytes at most, of which 2000 are left.
    assert first.workspace_bytes == 4000 - 2000
    assert sorted(second.held.values()) == [1000, 2000]
    assert second.peak_bytes == 1000 + 2000
    assert second.workspace_bytes == 0


@pytest.mark.parametrize("interpret", [True, False])
def test_the_allocator_holds_what_a_tracker_of_storages_sees(interpret):
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.Tanh())
    captured = capture(model, (torch.randn(32, 64),))
    inputs = list(placeholder_values(captured, captured.args, captured.kwargs))
    tracked = max(track_forward(captured.module, inputs, interpret=interpret).peaks.values())
    held = [*captured.module.parameters(), *inputs]
    held_bytes = sum(tensor.untyped_storage().nbytes() for tensor in held)
    runner = torch.fx.Interpreter(captured.module) if interpret else captured.module
    with torch.no_grad(), record_allocations() as record:
        record.begin("forward")
        (runner.run if interpret else runner)(*inputs)
        record.end()
    assert record.spans[0].peak_bytes + held_bytes == tracked
