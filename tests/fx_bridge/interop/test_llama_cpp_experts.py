"""Halves of layers on the host, in the words of llama.cpp and back."""

import random
import re
import shlex
from collections import Counter
from itertools import pairwise

import pytest

from fx_bridge.interop.llama_cpp_experts import Moved, read_experts, write_experts
from fx_bridge.interop.stage_layers import LayerNames, StageLayers
from tests.support.problem_counts import counts
from tests.support.refusals import refused

HOST = "cpu:0"
DEVICES = [*(f"cuda:{at}" for at in range(4)), HOST]


def names_of(count):
    return LayerNames(tuple(f"model.layers.{at}" for at in range(count)), ("embed",), ("head",))


def random_split(rng, layers):
    """The host with some layers, and GPUs with the others."""
    host = rng.choice([0, 0, rng.randint(0, layers)])
    left = layers - host
    cuts = sorted(rng.choices(range(left + 1), k=rng.randint(0, 3)))
    counts = [end - begin for begin, end in pairwise([0, *cuts, left])]
    stages = [StageLayers(f"cuda:{at}", n) for at, n in enumerate(counts[:-1]) if n]
    last = StageLayers(f"cuda:{len(counts) - 1}", counts[-1], has_head=True)
    return [StageLayers(HOST, host, True), *stages, last]


def random_feeds(rng, layers):
    kind = rng.choice(("experts", "dense", "dense first", "alternating"))
    if kind == "dense first":
        first = rng.randint(1, 3)
        return ["dense"] * first + ["experts"] * (layers - first)
    if kind == "alternating":
        return ["dense" if at % 2 else "experts" for at in range(layers)]
    return [kind] * layers


def random_layers(rng, feeds, first):
    """Layers from `first` on: those of a run from some end, all with experts, or any."""
    able = list(range(first, len(feeds)))
    how = rng.random()
    if how < 0.2:
        return {at for at in able if feeds[at] == "experts"}
    if how < 0.5:
        return {at for at in able[: rng.randint(0, len(able))] if feeds[at] == "experts"}
    return set(rng.sample(able, rng.randint(0, len(able))))


def selected(words, feeds):
    """The layers whose weights llama.cpp has on the host, by its own rule, and none other."""
    options = dict(zip(words, [*words[1:], None], strict=True))
    experts = r"blk\.%s\.ffn_(up|down|gate)_exps"
    patterns = [experts % r"\d+"] if "--cpu-moe" in options else []
    patterns += [experts % at for at in range(int(options.get("--n-cpu-moe", 0)))]
    if "-ot" in options:
        expression, _, place = options["-ot"].rpartition("=")
        assert place == "CPU" and "," not in expression
        patterns.append(expression)
    found = re.compile("|".join(patterns) or "(?!)")
    moved = set()
    for at, feed in enumerate(feeds):
        suffix = "_exps" if feed == "experts" else ""
        own = [f"blk.{at}.ffn_{part}{suffix}.weight" for part in ("up", "down", "gate")]
        if any(found.search(name) for name in own):
            assert all(found.search(name) for name in own)
            moved.add(at)
        for part in ("attn_q", "attn_output", "attn_norm", "ffn_norm", "ffn_gate_inp"):
            assert not found.search(f"blk.{at}.{part}.weight")
        assert not found.search(f"blk.{at}.ffn_up_shexp.weight")
    return moved


@counts(400, 5000)
def test_words_select_exactly_the_layers_and_come_back(count):
    rng = random.Random(0)
    seen = Counter()
    for _ in range(count):
        layers = rng.randint(4, 130)
        stages, feeds = random_split(rng, layers), random_feeds(rng, layers)
        first = stages[0].count
        on_host = random_layers(rng, feeds, first)
        words = write_experts(names_of(layers), stages, dict.fromkeys(on_host, Moved()), feeds)
        assert {at for at in selected(words, feeds) if at >= first} == on_host
        if "-ot" in words:
            assert selected(words, feeds) == on_host
        read = read_experts(shlex.join(words), names_of(layers), DEVICES, feeds)
        assert read == (stages, dict.fromkeys(on_host, Moved()), False)
        seen[next((w for w in ("--cpu-moe", "--n-cpu-moe", "-ot") if w in words), "")] += 1
    assert len(seen) == 4 and min(seen.values()) > count // 25


@pytest.mark.parametrize(
    ("feeds", "on_host", "expected"),
    [
        ("eeee", {0, 1, 2, 3}, ["--cpu-moe"]),
        ("eeee", {0, 1}, ["--n-cpu-moe", "2"]),
        ("eeee", {1}, ["-ot", r"blk\.(1)\.ffn_(up|down|gate|gate_up)_exps=CPU"]),
        ("deee", {1, 2}, ["--n-cpu-moe", "3"]),
        ("deee", {0, 1}, ["-ot", r"blk\.(0|1)\.ffn_(up|down|gate|gate_up)(_exps)?\.=CPU"]),
        ("dddd", {2, 3}, ["-ot", r"blk\.(2|3)\.ffn_(up|down|gate)\.=CPU"]),
        ("eeee", set(), []),
    ],
)
def test_the_shortest_words(feeds, on_host, expected):
    feeds = [{"e": "experts", "d": "dense"}[feed] for feed in feeds]
    stages = [StageLayers(HOST, 0, True), StageLayers("cuda:0", 4, has_head=True)]
    moved = dict.fromkeys(on_host, Moved())
    assert write_experts(names_of(4), stages, moved, feeds)[10:] == expected


@pytest.mark.parametrize(
    ("words", "on_host"),
    [
        ("--cpu-moe --no-op-offload", {0, 1, 2, 3, 4, 5, 6, 7}),
        ("-ngl 6 -cmoe", {3, 4, 5, 6, 7}),
        ("-ncmoe 99", {0, 1, 2, 3, 4, 5, 6, 7}),
        ("-ncmoe 0", set()),
        ("-ot exps=CPU", {0, 1, 2, 3, 4, 5, 6, 7}),
        (r"-ot '\.[0-3]\.ffn_.*_exps\.=CPU'", {0, 1, 2, 3}),
        (r"-ot 'blk\.(0|1)\.ffn=CUDA0,exps=CPU'", {2, 3, 4, 5, 6, 7}),
        (r"-ot 'blk\.0\.ffn=CUDA0' -ot exps=CPU", {1, 2, 3, 4, 5, 6, 7}),
        ("-ngl all -ot shexp=CUDA0,exps=CPU", {0, 1, 2, 3, 4, 5, 6, 7}),
        ("-ngl 99 -ot attn=CUDA0,exps=CPU", {0, 1, 2, 3, 4, 5, 6, 7}),
        ("-ngl 99 -ot ffn_gate_inp=CUDA0,exps=CPU", {0, 1, 2, 3, 4, 5, 6, 7}),
        ("-ot token_embd=CPU,exp_probs_b=CUDA0,norm=CUDA0,exps=CPU", {0, 1, 2, 3, 4, 5, 6, 7}),
        ("-ot ffn=CPU", {0, 1, 2, 3, 4, 5, 6, 7}),
        (r"-ot 'blk\.([4-7])\.(?!attn)=CPU'", {4, 5, 6, 7}),
        ("-ot attn_kv_a_mqa=CUDA0", set()),
        ("-ot (exps|x)+=CPU", {0, 1, 2, 3, 4, 5, 6, 7}),
        (r"--override-tensor 'blk\.7.*exps=CPU' --n-cpu-moe 2", {0, 1, 7}),
    ],
)
def test_words_of_people(words, on_host):
    found = read_experts(words, names_of(8), ["cuda:0", HOST], ["experts"] * 8)
    assert found[1] == dict.fromkeys(on_host, Moved())
    assert found[2] == ("--no-op-offload" in words)


@pytest.mark.parametrize(
    ("words", "feed", "message"),
    [
        ("--cpu-moe", "dense", "--cpu-moe is about experts, and the model has none; write such as"),
        ("--cpu-moe=2", "experts", "llama.cpp's --cpu-moe has no value; write it alone"),
        ("-ncmoe x", "experts", "llama.cpp's --n-cpu-moe is 'x'; write a whole number from 0"),
        ("-ot 'exps'", "experts", "-ot has 'exps'; write an expression, = and CPU or such as CU"),
        ("-ot '(=CPU'", "experts", "'(', which is no regular expression (missing ), untermin"),
        ("-ot exps=CPU", "dense", "'exps', which is found in no weight of the model, such as blk."),
        ("-ot 'up_exps=CPU'", "experts", "divides a layer: blk.0.ffn_up_exps.weight on CPU, blk"),
        (r"-ot 'blk\.3\.=CPU'", "experts", "moves 'blk.3.attn_q.weight' away from cuda:0, where"),
        ("-ot exps=CUDA1", "experts", "'blk.0.ffn_up_exps.weight' on cuda:1, and the layer is on"),
        ("-ot shexp=CPU", "experts", "shexp.weight' on CPU, and the layer is on cuda:0; write CPU"),
        ("-ot attn_kv_a_mqa=CPU", "experts", "moves 'blk.0.attn_kv_a_mqa.weight' away from cud"),
        ("-ot ffn_gate_inp=CUDA1", "experts", "'blk.0.ffn_gate_inp.weight' on cuda:1, and the"),
        ("-ot token_embd=CUDA0", "experts", "moves 'token_embd.weight' away from cpu:0, where pl"),
        (r"-ot '^output\.=CPU'", "experts", "moves 'output.weight' away from cuda:0, where plans"),
        ("-ot ((x+)+)+!=CPU", "dense", "'((x+)+)+!', which can be found in too many ways"),
        ("--ngl 3", "experts", "words have '--ngl', which says nothing of layers; write only -dev"),
    ],
)
def test_words_that_are_no_plan_are_refused(words, feed, message):
    with refused(message):
        read_experts(words, names_of(8), ["cuda:0", HOST], [feed] * 8)
