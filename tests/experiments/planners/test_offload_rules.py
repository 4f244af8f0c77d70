"""Rules by which others offload: their plans, and what they cost by hand."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace

import pytest

from experiments.planners.offload_rules import OFFLOAD_RULES, OffloadChain, costs_of_rule
from fx_bridge.interop.llama_cpp_experts import OP_OFFLOAD_TOKENS
from solver import Device, Link, PartitionError, SolveLimits
from solver.offload.instance import OffloadInstance
from solver.offload.plan import plan_offload
from solver.offload.units import UNIT_MODES, Unit

LAYERS = 6
BLOCKS = [None, *(f"layer {at // 2}" for at in range(2 * LAYERS)), None]


def chain(*memory, tokens=1, experts=False):
    """Layers of attention (10 B, 2 B cache, 4 ns) and MLP (30 B, 8 ns) between 20 B, 3 ns."""

    def unit(name, weight_bytes, cache_bytes, run_ns, host_ns):
        runs = ((run_ns,) * len(memory),)
        return Unit(name, weight_bytes, cache_bytes, 0, UNIT_MODES, runs, (host_ns,))

    units = [unit("in", 20, 0, 3, 30)]
    for layer in range(LAYERS):
        units += [unit(f"a{layer}", 10, 2, 4, 40), unit(f"m{layer}", 30, 0, 8, 50)]
    units.append(unit("out", 20, 0, 3, 30))
    places = tuple(Device(f"d{n}", m) for n, m in enumerate(memory))
    links = (Link(10**9, 1),) * len(memory)
    hops = ((0,) * len(places),) * len(places)
    instance = OffloadInstance(tuple(units), places, links, None, ("all",), (1,), (hops,), (0,))
    names = frozenset(f"m{layer}" for layer in range(LAYERS)) if experts else frozenset()
    return OffloadChain(instance, BLOCKS, tokens, names)


def answers(*phases):
    """The time of each rule over forwards of several kinds, and the modes of the last kind."""
    found = {}
    for rule in OFFLOAD_RULES:
        try:
            costs = costs_of_rule(rule, [chain for chain, _ in phases])
        except PartitionError as error:
            found[rule.name] = SimpleNamespace(value_ns=None, reason=str(error))
            continue
        value_ns = sum(n * cost.value_ns for (_, cost), (_, n) in zip(costs, phases, strict=True))
        plan, cost = costs[-1]
        have = Counter(mode for _, mode in cost.instance.units_of(plan).values())
        modes = {mode: have[mode] for mode in UNIT_MODES}
        found[rule.name] = SimpleNamespace(value_ns=value_ns, modes=modes)
    return found


WORK_NS = 2 * 3 + LAYERS * 12
LOADS_NS = 2 * 21 + LAYERS * (11 + 31)


def test_what_streams_all_costs_what_hands_say():
    found = answers((chain(100), 1))
    assert found["diffusers sequential"].value_ns == WORK_NS + LOADS_NS
    # Layers load as one, and the rest as one.
    blocks_ns = 41 + LAYERS * 41
    assert found["diffusers block"].value_ns == WORK_NS + blocks_ns
    assert found["diffusers block"].modes == {"resident": 3, "streamed": LAYERS, "host": 0}
    # With streams a layer's load hides behind the layer before it, within a forward.
    hidden_ns = (LAYERS - 1) * max(0, 41 - 12)
    assert found["diffusers block, stream"].value_ns is None  # 40 of the rest, 2 x 40, 12 caches
    wide = answers((chain(132), 1))
    assert wide["diffusers block, stream"].value_ns == WORK_NS + 41 + 41 + hidden_ns
    loads, runs = [21, *[11, 31] * LAYERS, 21], [3, *[4, 8] * LAYERS, 3]
    waits = [max(0, load - run) for run, (_, load) in zip(runs, pairwise(loads), strict=False)]
    assert found["diffusers leaf, stream"].value_ns == WORK_NS + 21 + sum(waits)


def test_what_keeps_units_fills_devices_from_an_end():
    found = answers((chain(100), 1))
    # In order, with room for a load of 30 and the caches of the rest: in, a0, and not m0.
    auto = found["accelerate auto"]
    assert auto.modes == {"resident": 2, "streamed": 12, "host": 0}
    assert auto.value_ns == WORK_NS + LOADS_NS - 21 - 11
    # From the end: out, m5, a5, m4, and not a4 beside them.
    ngl = found["llama.cpp -ngl"]
    assert ngl.modes == {"resident": 4, "streamed": 0, "host": 10}
    assert ngl.value_ns == 3 + 8 + 4 + 8 + 40 + 4 * 90 + 30
    assert ngl.value_ns == found["llama.cpp -ngl --no-op-offload"].value_ns
    assert "needs" in found["diffusers model"].reason
    assert answers((chain(300), 1))["diffusers model"].value_ns == WORK_NS
    two = answers((chain(100, 50), 1))["llama.cpp -ngl"]
    assert two.modes["resident"] == 2 + 5


def test_many_tokens_have_matrices_of_the_host_copied_when_due():
    found = answers((chain(100, tokens=OP_OFFLOAD_TOKENS), 1))
    ngl = found["llama.cpp -ngl"]
    assert ngl.modes["host"] == 0 and ngl.modes["streamed"] > 0
    kept = found["llama.cpp -ngl --no-op-offload"]
    assert kept.modes["streamed"] == 0
    both = answers((chain(100, tokens=OP_OFFLOAD_TOKENS), 1), (chain(100), 5))["llama.cpp -ngl"]
    assert both.value_ns == ngl.value_ns + 5 * kept.value_ns and both.modes == kept.modes


def test_experts_go_to_the_host_alone():
    assert answers((chain(130), 1))["llama.cpp --cpu-moe"].reason == "the model has no experts"
    found = answers((chain(172, experts=True), 1))
    assert found["llama.cpp --cpu-moe"].modes["host"] == LAYERS
    assert found["llama.cpp --cpu-moe"].value_ns == WORK_NS + LAYERS * (50 - 8)
    # 112 of all else leave room for two.
    assert found["llama.cpp --n-cpu-moe"].modes["host"] == LAYERS - 2
    assert found["llama.cpp --n-cpu-moe"].value_ns == WORK_NS + (LAYERS - 2) * (50 - 8)
    copied = answers((chain(172, experts=True, tokens=99), 1))["llama.cpp --cpu-moe"]
    assert copied.modes == {"resident": 8, "streamed": LAYERS, "host": 0}


@pytest.mark.parametrize("memory", [(60,), (100,), (150,), (200, 60), (400,)])
@pytest.mark.parametrize("tokens", [1, 64])
def test_no_rule_beats_the_bound(memory, tokens):
    asked = chain(*memory, tokens=tokens, experts=True)
    bound = plan_offload(asked.instance, SolveLimits(0.2, deterministic=True)).objective_bound
    values = [answer.value_ns for answer in answers((asked, 1)).values()]
    assert any(value is not None for value in values)
    assert all(value is None or Fraction(bound) <= value for value in values)
