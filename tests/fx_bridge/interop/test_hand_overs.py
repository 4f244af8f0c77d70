"""What a page says of programs is what each of them is given."""

import json
import shlex

from fx_bridge.interop.engines import ENGINES, engine_words
from fx_bridge.interop.hand_overs import hand_overs
from fx_bridge.interop.write_plans import device_map
from solver import Device, Operator, PartitionProblem
from tests.support.decoders import captured_decoder, plan_of_layers
from tests.support.split_checks import in_halves


def words_of(captured, plan):
    operators = tuple(Operator(node.name) for node in captured.operators)
    problem = PartitionProblem(operators, tuple(map(Device, ("cuda:0", "cuda:1"))))
    return {entry.program: entry for entry in hand_overs(captured, plan, problem)}


def test_every_program_has_words_or_a_reason():
    _, captured, _ = captured_decoder(4)
    plan = plan_of_layers(captured, [1, 3])
    said = words_of(captured, plan)
    assert said.keys() == {"accelerate", "split-spec", *ENGINES}
    assert said["vllm"].text == shlex.join(engine_words(captured, plan, "vllm"))
    assert json.loads(said["accelerate"].text) == device_map(captured, plan)
    assert json.loads(said["split-spec"].text)["devices"] == ["cuda:0", "cuda:1"]
    assert not said["llama.cpp"].fits
    assert "llama.cpp has it on the host" in said["llama.cpp"].text


def test_a_plan_that_divides_a_layer_has_words_of_none():
    _, captured, _ = captured_decoder(4)
    half = len(captured.operators) // 2 + 2
    plan = in_halves(captured, half, ("cuda:0", "cuda:1")).meta["plan"]
    said = words_of(captured, plan)
    assert not any(said[name].fits for name in ENGINES)
    assert all("\n" not in entry.text for entry in said.values())
