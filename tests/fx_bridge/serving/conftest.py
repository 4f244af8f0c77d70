"""Captures that the tests of a file share."""

import functools

import pytest

from fx_bridge.serving import graphs


@pytest.fixture(scope="module", autouse=True)
def _captured_once(request):
    """Make each model, its steps, their graphs and what these cost once for a file."""
    made, to_digraph = {}, graphs.to_digraph

    def digraph_of(captured, *, costs, keep_whole):
        key = id(captured), repr(costs), tuple(keep_whole)
        if key not in made:
            # Kept with the graph, so that no other one gets its identity.
            made[key] = captured, to_digraph(captured, costs=costs, keep_whole=keep_whole)
        return made[key][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "to_digraph", digraph_of)
        patches = (graphs, "serve_step"), (graphs, "capture_phases"), (request.module, "model_of")
        for module, name in patches:
            if function := getattr(module, name, None):
                patch.setattr(module, name, functools.cache(function))
        yield
