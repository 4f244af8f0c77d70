"""Commands that are run: their answers, what they refuse, and models that are captured once."""

import json

import pytest

from experiments.cli import main
from experiments.console.exit_codes import EXIT_BAD_INPUT
from experiments.zoo import building
from fx_bridge.serving.phases import capture_phases


@pytest.fixture
def answer(capsys):
    """Run a command, and return what it answers as JSON."""

    def ask(words, code=0):
        capsys.readouterr()
        assert main([*map(str, words), "--json"]) == code, words
        return json.loads(capsys.readouterr().out)

    return ask


@pytest.fixture
def refuses(capsys):
    """Expect a command to end with an error of one line that has a message, and return the line."""

    def check(words, message):
        capsys.readouterr()
        assert main([*map(str, words)]) == EXIT_BAD_INPUT, words
        lines = capsys.readouterr().err.splitlines()
        assert message in lines[-1], lines
        assert [line.startswith("error: ") for line in lines] == [False] * (len(lines) - 1) + [True]
        return lines[-1]

    return check


@pytest.fixture(scope="module")
def captured_once():
    """Capture a model and its steps once: the graphs are the same whatever is asked of a plan."""
    build, capture = building.build_model, building.capture_model
    models, graphs, steps = {}, {}, {}

    def built(spec):
        if spec.weight_bytes is not None:
            return build(spec)
        if spec.name not in models:
            models[spec.name] = build(spec)
        return models[spec.name]

    def captured(loaded, asked=building.DEFAULT_CAPTURE):
        key = id(loaded), asked
        if key not in graphs:
            graphs[key] = loaded, capture(loaded, asked)
        return graphs[key][1]

    def phases(step, tokens):
        config = step.config.to_json_string()
        key = config, step.batch, step.context, step.chunk, tuple(tokens)
        if key not in steps:
            steps[key] = capture_phases(step, tokens)
        return steps[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "build_model", built)
        patch.setattr(building, "capture_model", captured)
        patch.setattr("fx_bridge.serving.graphs.capture_phases", phases)
        yield
