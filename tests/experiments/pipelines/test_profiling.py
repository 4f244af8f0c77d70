import json

import pytest
import torch
from torch import nn

from experiments.problems.profile import Profile
from fx_bridge import Training
from fx_bridge.capture.graph import capture
from fx_bridge.digraph import to_digraph
from solver import Link, PartitionError
from tests.support.profiles import made_profile
from tests.support.refusals import changed, refused

MODEL = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
CAPTURED = capture(MODEL, (torch.ones(3, 4),))


def profile(**changes):
    return made_profile(CAPTURED, **changes)


def test_a_file_gives_back_what_was_written(tmp_path):
    for link in (Link(10**9, 5000), Link(None, 7)):
        made = profile(link=link)
        made.save(tmp_path / "profile.json")
        assert Profile.load(tmp_path / "profile.json") == made
    data = json.loads((tmp_path / "profile.json").read_text())
    assert data["schema"] == "fxpartition.profile"
    assert data["forward_ns"]["linear"] == 10


def test_costs_go_into_the_operator_graph():
    graph = to_digraph(CAPTURED, training=Training(), costs=profile().costs(True))
    assert graph.nodes["linear"]["latency_ns"] == 10
    assert graph.nodes["linear"]["backward"]["latency_ns"] == 20
    assert graph.nodes["relu"]["workspace_bytes"] == 31
    assert graph.nodes["relu"]["backward"]["workspace_bytes"] == 5001
    graph = to_digraph(CAPTURED, costs=profile(training=False).costs(False))
    assert graph.nodes["linear"]["latency_ns"] == 10


def test_backward_passes_that_were_not_measured_are_missed():
    with pytest.raises(PartitionError, match=r"mine has no backward passes; measure it with --tr"):
        profile(training=False).costs(True)


def test_a_profile_is_of_one_graph():
    profile().check(CAPTURED)
    other = capture(MODEL, (torch.ones(5, 4),))
    with pytest.raises(PartitionError, match=r"one of another graph \(mine\); measure this model"):
        profile().check(other)


def test_transfers_of_plans_are_relayed_over_the_measured_link():
    interconnect = profile().interconnect
    assert interconnect.charging == "relayed"
    assert interconnect.link("a", "b") == Link(10**9, 5000)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("schema",), "fxpartition.plan", "schema is 'fxpartition.plan'; expected"),
        (("training",), 1, "training is 1; write true or false"),
        (("forward_ns", "linear"), 1.5, "forward_ns['linear'] is 1.5; write a whole number"),
        (("link_samples",), [[1]], "link_samples[0] has 1 entries; write 2"),
        (("link", "bandwidth_bytes_per_s"), 0, "bandwidth_bytes_per_s is 0"),
        (("colour",), 1, "'colour' is unknown; the fields are model"),
    ],
)
def test_files_that_say_something_else_are_refused(tmp_path, path, value, message):
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(changed(profile().to_dict(), path, value)))
    with refused(message, starts=str(file)):
        Profile.load(file)
