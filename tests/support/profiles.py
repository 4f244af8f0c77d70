"""Profiles of models that nothing measured."""

from experiments.problems.profile import Profile
from fx_bridge.capture.digest import graph_digest
from solver import Link


def made_profile(captured, **changes):
    """Return a profile in which each operator takes a nanosecond more than the one before it."""
    names = [node.name for node in captured.operators]
    least = {
        "forward_ns": 10,
        "backward_ns": 20,
        "workspace_bytes": 30,
        "backward_workspace_bytes": 5000,
    }
    values = {
        "model": "mine",
        "graph_digest": graph_digest(captured),
        "training": True,
        "threads": 1,
        "processes": 2,
        "repeats": 5,
        "machine": {"cores": "2"},
        **{what: {name: low + i for i, name in enumerate(names)} for what, low in least.items()},
        "forward_permille": 1010,
        "backward_permille": 990,
        "link": Link(10**9, 5000),
        "link_samples": ((64, 5000), (1024, 6000)),
    }
    return Profile(**{**values, **changes})
