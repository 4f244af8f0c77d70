"""Layers that run again in the words of Megatron and FlagScale, read back by their rules."""

import re
from dataclasses import replace

import pytest

from fx_bridge.capture.attention import attention_cores
from fx_bridge.capture.layers import layer_calls
from fx_bridge.interop.checkpoints import WholeModules, plan_with_checkpoints
from fx_bridge.interop.megatron import flagscale_settings, megatron_arguments
from solver import PartitionError
from tests.support.decoders import Layer, captured_decoder, plan_of_layers, random_counts, rng_of
from tests.support.refusals import refused


def planned(count, counts, again, **options):
    """A decoder's graph, and a plan of so many layers a stage of which some run again."""
    _, captured, problem = captured_decoder(count, **options)
    names = [f"layers.{at}" for at in again]
    plan = plan_of_layers(captured, counts)
    return captured, plan_with_checkpoints(captured, plan, names, problem=problem), problem


def first_layers(counts, again):
    """The numbers of the first layers of each stage."""
    starts = [sum(counts[:at]) for at in range(len(counts))]
    return [start + i for start, n in zip(starts, again, strict=True) for i in range(n)]


def read_megatron(words):
    """How many layers each stage has, and the numbers of those that run again."""
    options = dict(zip(words[::2], words[1::2], strict=True))
    layout = options["--pipeline-model-parallel-layout"]
    layout = re.sub(r"(.)\*(\d+)", lambda found: found[1] * int(found[2]), layout)
    assert layout.startswith("E") and layout.endswith("L")
    counts = [part.count("t") for part in layout.split("|")]
    assert options["--pipeline-model-parallel-size"] == str(len(counts))
    if "--recompute-granularity" not in options:
        return counts, []
    assert options["--recompute-granularity"] == "full"
    number = int(options["--recompute-num-layers"])
    if options["--recompute-method"] == "uniform":
        assert number == 1
        return counts, list(range(sum(counts)))
    assert options["--recompute-method"] == "block"
    return counts, first_layers(counts, [min(number, count) for count in counts])


def read_flagscale(settings, microbatches):
    """How many layers each stage has, and the numbers of those that run again."""

    def by_stage(key):
        values = []
        for stages, number, value in settings[key]:
            assert number == microbatches
            values += [value] * stages
        return values

    counts = settings["hetero"]["hetero_pipeline_layer_split"]
    assert settings["pipeline_model_parallel_size"] == len(counts)
    if "recompute_granularity" not in settings:
        return counts, []
    assert settings["recompute_granularity"] == "full"
    if settings["recompute_method"] == "uniform":
        assert settings["recompute_num_layers"] == 1
        return counts, list(range(sum(counts)))
    assert settings["recompute_method"] == "block"
    again = by_stage("recompute_num_layers_per_stage_micro_batch")
    assert by_stage("recompute_method_per_stage_micro_batch") == [1] * len(counts)
    flags = by_stage("recompute_granularity_per_stage_micro_batch")
    assert flags == [int(number > 0) for number in again]
    return counts, first_layers(counts, again)


@pytest.mark.parametrize("program", ["megatron", "flagscale"])
@pytest.mark.parametrize("count", [2, 5, 12])
def test_random_plans_come_back(count, program):
    for seed in range(5):
        rng = rng_of(count, seed)
        counts = random_counts(rng, count)
        number = rng.randint(0, max(counts))
        of_stages = [rng.randint(0, own) for own in counts]
        if program == "megatron":
            of_stages = [min(number, own) for own in counts]
        again = first_layers(counts, of_stages)
        captured, plan, problem = planned(count, counts, again)
        if program == "megatron":
            found = read_megatron(megatron_arguments(captured, plan, problem=problem))
        else:
            found = read_flagscale(flagscale_settings(captured, plan, 6, problem=problem), 6)
        assert found == (counts, again)
        assert planned(count, *found)[1] == plan


def test_cores_of_attention_are_selective():
    _, captured, problem = captured_decoder(3, Layer)
    # The projection reads what the second product makes.
    again = {"matmul", "div", "softmax", "matmul_2", "div_1", "softmax_1"}
    again |= {"matmul_4", "div_2", "softmax_2"}
    plan = replace(plan_of_layers(captured, [1, 2]), recomputed=again)
    assert megatron_arguments(captured, plan, problem=problem) == [
        *("--pipeline-model-parallel-size", "2", "--pipeline-model-parallel-layout", "Et|t*2L"),
        *("--recompute-granularity", "selective", "--recompute-modules", "core_attn"),
    ]
    settings = flagscale_settings(captured, plan, 4, problem=problem)
    assert settings["recompute_granularity"] == "selective"
    assert settings["recompute_modules"] == "core_attn"
    fewer = replace(plan, recomputed=again - {"matmul", "div", "softmax"})
    said = "'div_1' of layer 'layers.1' on cuda:1 runs again but not all"
    assert refusal_of(captured, fewer, problem).startswith(said)


def test_a_fused_core_is_not_selective():
    _, captured, problem = captured_decoder(3, Layer, fused=True)
    assert [len(core) for core in attention_cores(captured)] == [1] * 3
    # The projection saves its result: a checkpoint of the core keeps it, and such a plan not.
    again = frozenset().union(*attention_cores(captured))
    plan = replace(plan_of_layers(captured, [3]), recomputed=again)
    said = refusal_of(captured, plan, problem)
    assert "of layer 'layers.0' on cuda:0 runs again but not all" in said


def test_units_of_layers_are_uniform():
    """Where a region has two layers, what lies between the two is made again as well."""
    captured, plan, problem = planned(5, [2, 3], [])
    layers = [int(call.path[-1]) if call else None for call in layer_calls(captured).values()]
    region_of = [0 if layer is None else 1 + layer // 2 for layer in layers]
    region_of[layers.index(4) :] = [3] * (len(layers) - layers.index(4))
    operators = [
        replace(op, backward=replace(op.backward, region=region))
        for op, region in zip(problem.operators, region_of, strict=True)
    ]
    problem = problem.replace(operators=operators)
    modules = WholeModules(captured, plan, problem)
    unit_of = {op.name: r for op, r in zip(operators, region_of, strict=True) if r}
    inside = {n: unit for n, unit in unit_of.items() if layer_calls(captured)[n]}
    plan = replace(plan, recomputed=modules.again(inside))
    options = ["--recompute-method", "uniform", "--recompute-num-layers", "2"]
    assert megatron_arguments(captured, plan, problem=problem)[-4:] == options
    assert flagscale_settings(captured, plan, 4, problem=problem)["recompute_num_layers"] == 2
    fewer = plan_with_checkpoints(captured, plan, ["layers.0"], problem=problem)
    assert fewer.recomputed < plan.recomputed


@pytest.mark.parametrize(
    ("again", "message"),
    [
        ([3, 4], r"cuda:1 runs layer 'layers.3' again but not 'layers.2' before it.* nearest is"),
        ([0, 2, 3], "cuda:0 runs 1 of 2 layers again and cuda:1 2.* nearest of Megatron is 2 of"),
    ],
)
def test_what_megatron_cannot_say_is_refused(again, message):
    captured, plan, problem = planned(5, [2, 3], again)
    with pytest.raises(PartitionError, match=message):
        megatron_arguments(captured, plan, problem=problem)


def refusal_of(captured, plan, problem=None):
    with refused() as error:
        flagscale_settings(captured, plan, 4, problem=problem)
    return str(error.value)


def test_layers_that_may_not_run_again_do_not_count():
    """Where a problem lets only some operators run again, the others would run again as well."""
    captured, plan, problem = planned(4, [2, 2], [0, 2])
    calls = layer_calls(captured)

    def only(names):
        never = {op.name: replace(op.backward, recomputable=False) for op in problem.operators}
        operators = [
            op if op.name in names else replace(op, backward=never[op.name])
            for op in problem.operators
        ]
        return problem.replace(operators=operators)

    layers = {n for n, call in calls.items() if call and call.path in ("layers.0", "layers.2")}
    words = megatron_arguments(captured, plan, problem=only(layers))
    assert words[-4:] == ["--recompute-method", "block", "--recompute-num-layers", "1"]
    fewer = only(plan.recomputed)
    said = refusal_of(captured, plan, fewer)
    assert said.startswith("a checkpoint of module 'layers.0' would also")


def test_what_is_no_run_of_whole_layers_is_refused():
    captured, plan, problem = planned(3, [1, 2], [])
    names = list(plan.assignment)
    inside = next(n for n, call in layer_calls(captured).items() if call and "linear" in n)
    divided = replace(plan, assignment={**plan.assignment, inside: "cuda:1"})
    said = refusal_of(captured, divided)
    assert said.startswith("the plan divides layer 'layers.0' between cuda:0")
    for name, where, message in (
        (names[0], "cuda:1", "what is before the layers is on cuda:1, and FlagScale has it on"),
        (names[-1], "cuda:0", "'layer_norm', after the layers, is on cuda:1 and "),
    ):
        said = refusal_of(captured, replace(plan, assignment={**plan.assignment, name: where}))
        assert message in said
        assert "; the nearest is 1,2 layers on cuda:0,cuda:1; " in said
    layers, other = layer_calls(captured), {"cuda:0": "cuda:1", "cuda:1": "cuda:0"}
    swapped = {n: other[d] if layers[n] else d for n, d in plan.assignment.items()}
    said = refusal_of(captured, replace(plan, assignment=swapped))
    assert "layer 'layers.1' is on cuda:0, before 'layers.0'" in said
    head = replace(plan, recomputed={"layer_norm"})
    if problem.operators[problem.index_of["layer_norm"]].backward.recomputable:
        said = refusal_of(captured, head, problem)
        assert "operator 'layer_norm' on cuda:1 is in no layer" in said
