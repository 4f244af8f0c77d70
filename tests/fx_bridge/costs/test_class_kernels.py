"""Costs of one operator on several classes of devices, put together."""

from fx_bridge.costs.class_kernels import merged


def test_a_backward_pass_without_time_on_some_classes_has_an_entry_for_each():
    timed = {"latency_ns": {"slow": 4, "old": 3}, "backward": {"latency_ns": {"slow": 2, "old": 0}}}
    free = {"latency_ns": {"fast": 1}, "backward": {"saves": ["x"]}}
    found = merged([(["slow", "old"], timed), (["fast"], free)])
    assert found["latency_ns"] == {"slow": 4, "old": 3, "fast": 1}
    assert found["backward"]["latency_ns"] == {"slow": 2, "old": 0, "fast": 0}
    found = merged([(["fast"], free), (["slow", "old"], timed)])
    assert found["backward"]["latency_ns"] == {"fast": 0, "slow": 2, "old": 0}
