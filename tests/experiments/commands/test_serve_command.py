"""Language models that serve, planned from the shell."""

import html
import shlex
from dataclasses import replace
from types import SimpleNamespace

import pytest

from experiments.cli import main
from experiments.commands.serve_host import read_host, why_no_plan
from experiments.commands.serve_rules import ENGINES_WITH_RULES
from experiments.console.exit_codes import EXIT_NO_PLAN
from experiments.planners.offload_rules import OFFLOAD_RULES
from experiments.planners.serving_rules import SERVING_RULES
from experiments.problems.devices import parse_devices
from fx_bridge.interop.engines import ENGINES
from fx_bridge.options import Costs
from solver import PCIE, Link, SolveStatus, load_plan, save_plan
from solver.model.job import SERVING_OBJECTIVES, Host
from solver.model.quantities import format_ns
from tests.support.documents import told_keys

pytestmark = pytest.mark.usefixtures("captured_once")
MODEL = "tests.support.serving_models:small"
REQUEST = ["--prompt", "8", "--generate", "4", "--context", "16", "--batch", "3"]
NARROW = "tests.support.serving_models:narrow_llama"
ASKED = ["--context", "24", "--prompt", "9", "--generate", "3", "--whole-layers", "--rules"]
EXPERTS = "tests.support.serving_models:experts"
TOLD_OF_A_PLAN = told_keys("### `serve`") - {
    *("reason", "rules", "modes", "words", "given", "diagnosis")
}
SERVE = ["serve", MODEL, "--devices", "100KB,80KB", *REQUEST]
TOKEN = [*SERVE, "--objective", "token"]
HOST, LLAMA_CPP = [*TOKEN, "--host", "1GB"], [*SERVE, "--host", "1MB", "--for", "llama.cpp"]


def test_the_most_tokens_that_fit(tmp_path, answer):
    out = tmp_path / "plan.json"
    words = [*SERVE, "--objective", "context", "--for", "vllm", "--out", str(out)]
    found = answer(words)
    assert found["status"] == "optimal"
    assert found["value"] == found["bound"] == found["tokens"] == 3 * found["context"]
    assert [len(layers) for layers in found["layers"].values()] == [1, 1]
    assert found["words"][1] == "VLLM_PP_LAYER_PARTITION=1,1"
    assert set(found) == TOLD_OF_A_PLAN | {"words", "rules"}
    # What the engine does by itself is that plan here.
    (rule,) = found["rules"]
    assert (rule["rule"], rule["tokens"], rule["times_better"]) == ("vllm", found["tokens"], 1)
    assert found["experts_read"] is None
    for device, capacity in (("cuda:0", 100_000), ("cuda:1", 80_000)):
        assert found["memory_bytes"][device] <= 0.9 * capacity
    # One position more takes 3 sequences x 2 heads x 8 numbers x 4 bytes, of keys and of values.
    free = {d: 0.9 * c - found["memory_bytes"][d] for d, c in (("cuda:0", 1e5), ("cuda:1", 8e4))}
    assert min(free.values()) < 2 * 3 * 2 * 8 * 4
    # The file is a plan of the model itself, which other commands read.
    assert load_plan(out).device_order == tuple(found["device_order"])


def test_a_page_has_what_is_printed_and_the_calls_that_hold_most(capsys, tmp_path):
    page = tmp_path / "plan.html"
    words = [*SERVE, "--objective", "token", "--for", "vllm", "--out"]
    assert main([*words, str(page)]) == 0
    text = html.unescape(page.read_text(encoding="utf-8"))
    printed = capsys.readouterr().out.partition("rules of engines")[0]
    assert all(line in text for line in printed.splitlines())
    # Prompts of eight tokens hold more than single ones.
    assert f"<h1>{MODEL}: a call of 8 tokens</h1>" in text
    assert "<summary>vllm</summary><pre>" in text
    assert f"fxpartition {shlex.join([*words, str(page)])}" in text


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--objective", "token", "--whole-layers"], marks=pytest.mark.deep),
        pytest.param(["--objective", "request", "--chunk", "3"], marks=pytest.mark.deep),
        pytest.param(
            ["--objective", "context", "--memory-model", "inference"], marks=pytest.mark.deep
        ),
        ["--objective", "context", "--devices", "60KB,unlimited"],
    ],
)
def test_other_commands_read_the_plan(options, tmp_path, answer):
    out, words = str(tmp_path / "plan.json"), str(tmp_path / "words")
    found = answer([*SERVE, *options, "--out", out])
    split = answer(["split", MODEL, "--plan", out])
    assert [stage["device"] for stage in split["stages"]] == found["device_order"]
    assert split["equal"]
    devices = ["--devices", "100KB,unlimited", "--memory-model", "weights"]
    score = answer(["score", out, MODEL, *devices])
    assert score["format"] == "plan" and score["device_order"] == found["device_order"]
    if "--whole-layers" in options:
        assert main(["hand-over", out, MODEL, "--to", "vllm", "--out", words]) == 0
        counts = ",".join(str(len(layers)) for layers in found["layers"].values())
        assert f"VLLM_PP_LAYER_PARTITION={counts}" in (tmp_path / "words").read_text()


@pytest.mark.deep
def test_all_objectives_stand_in_one_table(capsys, answer):
    words = [*SERVE, "--objective", "all", "--for", "vllm"]
    found = answer(words)
    assert list(found) == list(SERVING_OBJECTIVES)
    for name, own in found.items():
        assert own["objective"] == name and own["status"] == "optimal"
        assert set(own) == TOLD_OF_A_PLAN | {"words"}
    one = answer([*SERVE, "--objective", "token", "--for", "vllm"])
    # The division of the engine stands beside one plan alone.
    changing = {"wall_time_s", "assignment", "device_order", "layers", "memory_bytes", "words"}
    changing |= {"rules"}
    for key in set(one) - changing:
        assert one[key] == found["token"][key], key
    assert main(words) == 0
    header, _, *rows = capsys.readouterr().out.splitlines()
    told = "objective tokens that fit first token token request tokens/s proof"
    assert header.split() == told.split()
    for own, row, *below in zip(found.values(), *(rows[at::4] for at in range(4)), strict=True):
        assert row.split()[:2] == [own["objective"], str(own["tokens"])]
        assert row.split()[-2:] == ["proven", "optimal"]
        assert [line.split()[0] for line in below[:2]] == [f"{d}:" for d in own["device_order"]]
        assert all("layers." in line for line in below[:2])
        assert "VLLM_PP_LAYER_PARTITION=1,1" in below[2]


@pytest.mark.deep
def test_of_all_objectives_some_may_have_no_plan(capsys, answer):
    words = [*SERVE, "--objective", "all", "--first-token", "1ns"]
    found = answer(words)
    # The limit is on the plan for tokens alone.
    assert [own["status"] for own in found.values()] == ["optimal", "infeasible", *["optimal"] * 2]
    assert main(words) == 0
    printed = capsys.readouterr().out.splitlines()
    at = [row.split()[0] for row in printed].index("token")
    assert printed[at].split() == ["token", *["-"] * 5, "infeasible"]
    assert printed[at + 1].startswith("  no plan has its first token before")
    words = ["serve", MODEL, "--devices", "10KB", *REQUEST, "--objective", "all"]
    assert main(words) == EXIT_NO_PLAN
    assert capsys.readouterr().out.count(" infeasible\n") == 4


def test_any_context_fits_where_nothing_limits_the_memory(capsys, answer):
    words = ["serve", MODEL, "--devices", "unlimited", *REQUEST]
    found = answer([*words, "--objective", "all"])
    assert [(own["status"], own["tokens"]) for own in found.values()] == [("optimal", "any")] * 4
    assert found["context"]["value"] == found["context"]["bound"] == "any"
    assert found["context"]["token_ns"] == found["token"]["value"]
    assert main([*words, "--objective", "context"]) == 0
    assert "tokens that fit: any\n" in capsys.readouterr().out


@pytest.mark.deep
def test_tokens_that_fit_beside_values_are_told_of_all_objectives(answer):
    words = ["serve", MODEL, "--devices", "200KB,150KB", *REQUEST, "--memory-model", "inference"]
    found = answer([*words, "--objective", "all"])
    most = found["context"]["tokens"]
    assert all(0 < own["tokens"] <= most for own in found.values())
    assert answer([*words, "--objective", "token"])["tokens"] is None


@pytest.mark.parametrize(
    "host",
    [
        pytest.param((), marks=pytest.mark.deep),
        ("--host", "1MB", "--time-limit", "0.3", "--deterministic"),
    ],
)
def test_the_experts_that_a_token_reads_are_told(host, capsys, answer):
    words = ["serve", EXPERTS, "--devices", "300KB", *REQUEST, "--objective", "token"]
    words[words.index("--batch") + 1] = "1"
    words += host
    times = {}
    for read, option in (("average", True), ("most", False), ("all", True)):
        found = answer([*words, *["--experts-read", read] * option])
        assert found["experts_read"] == read
        times[read] = found["token_ns"]
    # One token chooses two of four, no more and no fewer.
    assert times["average"] == times["most"] < times["all"]
    assert main([*words, "--experts-read", "average"]) == 0
    assert "experts read: as many as tokens choose on average\n" in capsys.readouterr().out


def test_a_host_streams_and_computes(capsys, answer):
    words = ["serve", MODEL, "--devices", "90KB@rtx-4090", "--host", "100KB", *REQUEST]
    words += ["--objective", "token", "--time-limit", "2"]
    found = answer(words)
    assert found["status"] in ("optimal", "feasible")
    assert 0 < found["bound"] <= found["value"] == found["token_ns"]
    (counts,) = found["modes"].values()
    assert sum(counts.values()) == 6 and counts["resident"] < 6
    assert set(found) == TOLD_OF_A_PLAN | {"modes"}
    assert {*found["mode_of"]} < {*found["assignment"]}
    assert found["tokens"] >= 3 * 16 and found["value"] <= found["baseline"]
    greedy = answer([*words, "--solver", "greedy"])
    assert (greedy["value"], greedy["status"]) == (found["baseline"], "feasible")
    assert [step["step"] for step in greedy["log"]] == ["mode fill"]
    assert main([*words, "--steps"]) == 0
    told = capsys.readouterr().out
    assert f"tokens that fit: {found['tokens']}\n" in told and "each token after it: " in told
    assert "mode counts" in told
    left = answer([*words, "--without", "mode moves", "--workers", "2"])
    assert "mode moves" not in {step["step"] for step in left["log"]}
    left = answer([*words, "--without", "mode counts"])
    assert {step["step"] for step in left["log"]} <= {"mode moves"}


def test_a_page_of_a_plan_with_a_host_has_its_units(capsys, tmp_path, answer):
    page = tmp_path / "plan.html"
    words = ["serve", MODEL, "--devices", "90KB@rtx-4090", "--host", "100KB", *REQUEST]
    words += ["--objective", "token", "--time-limit", "2", "--deterministic", "--out", str(page)]
    assert main(words) == 0
    text = html.unescape(page.read_text(encoding="utf-8"))
    assert all(line in text for line in capsys.readouterr().out.splitlines())
    assert f"<h1>{MODEL}</h1>" in text and f"fxpartition {shlex.join(words)}" in text
    assert text.count("</i>model.layers.") == 4 and "of the search</summary>" in text
    assert "<th>time of 8 tokens<th>time of 1 token" in text


def test_the_first_token_has_a_limit_with_a_host(capsys, answer):
    words = ["serve", MODEL, "--devices", "90KB@rtx-4090", "--host", "100KB", *REQUEST]
    words += ["--objective", "token", "--time-limit", "2"]
    free = answer(words)
    limit_ns = int(free["first_token_ns"])
    kept = answer([*words, "--first-token", f"{limit_ns}ns"])
    assert kept["first_token_ns"] <= limit_ns and kept["value"] >= free["bound"]
    assert main([*words, "--first-token", "1ns"]) == EXIT_NO_PLAN
    assert "has its first token within 1 ns; give a longer --first" in capsys.readouterr().out


def test_all_objectives_have_plans_with_a_host(capsys, answer):
    words = ["serve", MODEL, "--devices", "90KB@rtx-4090", "--host", "100KB", *REQUEST]
    words += ["--objective", "all", "--time-limit", "4", "--deterministic"]
    every = answer(words)
    assert every["context"]["value"] == max(found["tokens"] for found in every.values())
    assert every["context"]["status"] == "optimal"
    assert every["throughput"]["value"] == pytest.approx(3e9 / every["token"]["value"])
    assert main(words) == 0
    assert "cuda:0 on the host: " in capsys.readouterr().out


def test_why_no_plan_with_a_host_was_found(capsys):
    words = ["serve", MODEL, "--devices", "90KB@rtx-4090", *REQUEST]
    assert main([*words, "--host", "1KB", "--objective", "all"]) == EXIT_NO_PLAN
    assert capsys.readouterr().out.count("or the devices or the host (--host) more memory") == 4
    late = SimpleNamespace(solved=SimpleNamespace(status=SolveStatus.UNKNOWN))
    assert why_no_plan(late) == "no plan found in time; a longer --time-limit may tell"


def test_a_host_serves_requests_and_rules_stand_beside(capsys, answer):
    words = ["serve", MODEL, "--devices", "90KB@rtx-4090", "--host", "100KB", *REQUEST, "--rules"]
    words += ["--time-limit", "2"]
    found = answer(words)
    assert found["objective"] == "request" and 0 < found["bound"] <= found["value"]
    assert found["value"] == found["request_ns"]
    assert found["request_ns"] == found["first_token_ns"] + 4 * found["token_ns"]
    assert [rule["rule"] for rule in found["rules"]] == [rule.name for rule in OFFLOAD_RULES]
    assert any(rule["request_ns"] for rule in found["rules"])
    for rule in found["rules"]:
        value = rule["request_ns"]
        assert (value is None) == (rule["times_better"] is None) == bool(rule["reason"])
        assert value is None or (value >= found["bound"] and sum(rule["modes"].values()))
    assert main(words) == 0
    told = capsys.readouterr().out.splitlines()
    start = told.index("rules of engines, 3 x 16 tokens, by request:")
    assert any(line.startswith("first token: ") for line in told[:start])
    proofs = ("request: bound ", "request: proven optimal")
    assert any(line.startswith(proofs) for line in told[:start])
    assert told[start - 1].endswith("Xeon 8480+")
    assert f"greedy: {format_ns(round(found['baseline']))}" in told
    assert told[start + 1].split()[:2] == ["rule", "modes"]
    for row, rule in zip(told[start + 4 :], found["rules"], strict=False):
        assert row.startswith(rule["rule"])
        if rule["request_ns"] is not None:
            assert row.endswith(f"{rule['times_better']:.2f} times")


@pytest.mark.deep
def test_a_plan_with_a_host_in_words_beside_those_of_a_person(capsys, answer):
    words = ["serve", EXPERTS, "--devices", "300KB@rtx-4090", "--host", "1MB@rtx-3090", *REQUEST]
    words += ["--objective", "token", "--for", "llama.cpp", "--time-limit", "2"]
    given = "-ngl 3 --cpu-moe"
    found = answer([*words, "--words", given])
    assert found["status"] == "optimal"
    assert found["words"][:2] in (["-dev", "CUDA0"], ["-dev", "none"])
    scored = found["given"]
    assert scored["words"] == given and not scored["violations"]
    assert "host" in scored["assignment"].values()
    gap = scored["value"] / found["value"] - 1
    assert scored["gap"] == {"least": gap, "most": gap}
    told = f"given: token {format_ns(round(scored['value']))}, {100 * gap:.2f} % above the proven"
    assert main([*words, "--words", given]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1].startswith(told) and printed[-2] == f"given: {given}"
    assert printed[-3].startswith("times: rtx-4090 from ")
    assert printed[-4] == shlex.join(found["words"])
    best = answer([*words, "--words", shlex.join(found["words"])])
    assert best["given"]["gap"] == {"least": 0.0, "most": 0.0}
    words[3] = "50KB@rtx-4090"
    assert main([*words, "--words", given]) == 0
    assert "broken: device 'cuda:0' needs" in capsys.readouterr().out


def test_no_plan(capsys, answer):
    words = ["serve", MODEL, "--devices", "10KB", *REQUEST, "--objective", "token"]
    found = answer(words, EXIT_NO_PLAN)
    assert found["status"] == "infeasible"
    assert "too few" in found["reason"]
    assert found["diagnosis"]["conflict"][0]["kind"] == "MemoryLimit"
    assert main(words) == EXIT_NO_PLAN
    told = capsys.readouterr().out
    assert told.startswith("token: infeasible; ")
    assert found["diagnosis"]["text"].split()[-5:] == told.split()[-5:]


def test_greedy_stands_beside_and_may_be_asked_for(capsys, answer):
    words = [*SERVE, "--objective", "request"]
    best = answer(words)
    greedy = answer([*words, "--solver", "greedy"])
    assert best["value"] <= best["baseline"] == greedy["value"] == greedy["baseline"]
    assert (greedy["solver"], greedy["bound"], greedy["status"]) == ("greedy", None, "feasible")
    assert [step["step"] for step in greedy["log"]] == ["greedy"]
    assert main([*words, "--solver", "greedy", "--steps"]) == 0
    told = capsys.readouterr().out
    assert f"greedy: {format_ns(greedy['value'])}\n" in told
    assert [line.split()[0] for line in told.splitlines()[-4:]].count("greedy") == 1


def test_a_plan_with_a_host_is_written_and_split(capsys, refuses, tmp_path, answer):
    out = str(tmp_path / "plan.json")
    words = ["serve", MODEL, "--devices", "90KB@rtx-4090", "--host", "1MB", *REQUEST]
    found = answer([*words, "--time-limit", "2", "--out", out])
    plan = load_plan(out)
    assert plan.device_order == tuple(found["device_order"])
    assert {*plan.mode_of.values()} == {*found["mode_of"].values()}
    split = answer(["split", MODEL, "--plan", out])
    assert split["equal"] and {stage["device"] for stage in split["stages"]} == {*plan.device_order}
    refuses(["score", out, MODEL, "--devices", "50KB,1MB@cpu", "--memory-model", "weights"], "")
    streamed = dict.fromkeys(plan.assignment, "streamed")
    save_plan(replace(plan, mode_of=streamed), out)
    capsys.readouterr()
    assert main(["split", MODEL, "--plan", out]) == 0
    assert f"the plan streams {len(streamed)} operators" in capsys.readouterr().err
    for target in ("accelerate", "split-spec", "vllm"):
        words = ["hand-over", out, MODEL, "--to", target, "--out", str(tmp_path / target)]
        refuses(words, "of the plan is streamed")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serve", MODEL], "there are no devices; write for example --devices 24GB,12GB"),
        ([*SERVE, "--prompt", "80"], "a prompt of 80 and 4 more tokens do not fit a context of 16"),
        ([*SERVE, "--first-token", "soon"], "'soon' is not a time; write for example 500ms"),
        ([*SERVE, "--first-token", "5ms"], "is a limit of --objective token; write that"),
        ([*TOKEN, "--first-token", "0ms"], "'0ms' leaves no time for the prompt; write for exampl"),
        ([*SERVE, "--host-link", "25GB/s"], "add such as --host 64GB"),
        ([*SERVE, "--host", "64"], "memory '64' has no unit; write one memory, such as 64GB@cpu"),
        ([*SERVE, "--host", "abc"], "'abc' is not a memory; write one memory, such as 64GB@cpu"),
        ([*SERVE, "--for", "llama.cpp"], "embedding on the host, and there is none; add such as -"),
        ([*HOST, "--memory-model", "inference"], "--memory-model inference is for plans without a"),
        ([*SERVE, "--objective", "all", "--out", "plan.json"], "--out is for one plan, and"),
        ([*SERVE, "--out", "plan.pdf"], "plan.pdf ends in '.pdf'; write .json"),
        ([*HOST, "--solver", "chain"], "solver 'chain' has no steps for a host; write one of au"),
        ([*LLAMA_CPP, "--solver", "greedy"], "by one search, which takes no solver; leave that"),
        ([*LLAMA_CPP, *TOKEN[2:], "--first-token", "1s"], "takes no limit of the first token;"),
        ([*SERVE, "--objective", "all", "--steps"], "--steps is for one plan, and --objective all"),
        ([*SERVE, "--objective", "all", "--rules"], "--rules is for one plan, and --objective all"),
        ([*SERVE, "--without", "nothing"], "--without: "),
        ([*HOST, "--for", "vllm"], "for what a host computes; write --for llama.cpp, or leave --h"),
        ([*LLAMA_CPP, "--devices", "90KB,1MB@cpu"], "'cpu:0' is among the devices, and llama.cpp'"),
        ([*SERVE, "--words", "--cpu-moe"], "--words are those of an engine with a host; add such"),
        ([*LLAMA_CPP, "--words", "--cpu-moe"], "have no -ts, without which it divides layers by f"),
        ([*LLAMA_CPP, "--words", "-ts 1,1 -ncmoe 1"], "is about experts, and the model has none;"),
        ([*TOKEN, "--host", "2x1GB"], "names several; write one"),
        (["serve", "mlp", "--devices", "1GB"], "is no language model of transformers"),
    ],
)
def test_what_says_nothing(words, message, refuses):
    refuses(words, message)


def test_slips_in_words_are_told_before_the_model_is_captured(refuses, monkeypatch):
    monkeypatch.setattr("experiments.zoo.building.build_model", None)
    refuses([*LLAMA_CPP, "--words", "-ts 1,x"], "'1,x'; write numbers with commas between them")


def test_engines_with_rules_are_engines():
    assert set(ENGINES_WITH_RULES) == {rule.name for rule in SERVING_RULES} & set(ENGINES)


@pytest.mark.deep
def test_rules_stand_beside_the_plan_in_a_table_and_in_json(capsys, answer):
    words = ["serve", NARROW, "--devices", "60kB,30kB", "--objective", "context", *ASKED]
    assert main(words) == 0
    printed = capsys.readouterr().out.splitlines()
    start = printed.index("rules of engines, 1 x 24 tokens, by context:")
    header, _, plan, *rows = printed[start + 1 : start + 4 + len(SERVING_RULES)]
    assert header.split()[:2] == ["rule", "layers"] and plan.split()[0] == "plan"
    found = answer(words)
    assert found["tokens"] == int(plan.split()[2])
    assert [rule["rule"] for rule in found["rules"]] == [rule.name for rule in SERVING_RULES]
    by_name = {rule["rule"]: rule for rule in found["rules"]}
    assert by_name["vllm"]["layers"] == {"cuda:0": 2, "cuda:1": 2}
    for row, rule in zip(rows, found["rules"], strict=True):
        cells = row.split()
        assert cells[0] == rule["rule"]
        assert cells[1] == ",".join(str(count) for count in rule["layers"].values())
        assert int(cells[2]) == rule["tokens"]
        assert cells[-2:] == [f"{found['tokens'] / rule['tokens']:.2f}", "times"]
        assert rule["times_better"] == found["tokens"] / rule["tokens"]


@pytest.mark.deep
def test_without_a_plan_rules_say_why_theirs_fit_neither(answer):
    words = ["serve", NARROW, "--devices", "2x20kB", *ASKED]
    found = answer(words, EXIT_NO_PLAN)
    assert found["status"] == "infeasible"
    for rule in found["rules"]:
        assert rule["tokens"] is None and rule["times_better"] is None and rule["reason"]
    assert "rules" not in answer(words[:-1], EXIT_NO_PLAN)


def devices_file(folder, *links, memory="60KB", **interconnect):
    """A file of three devices, with links and settings of the interconnect."""
    lines = [
        f'[[devices]]\nname = "cuda:{i}"\nmemory = "{memory}"\nclass = "rtx-4090"' for i in range(3)
    ]
    for source, target, rate in links:
        lines.append(f'[[links]]\nsource = "{source}"\ntarget = "{target}"\nbandwidth = "{rate}"')
    if interconnect:
        lines += ["[interconnect]", *(f"{key} = {value}" for key, value in interconnect.items())]
    path = folder / "devices.toml"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_host_is_linked_as_the_file_says(tmp_path):
    file = parse_devices(devices_file(tmp_path, ("host", "cuda:1", "1GB/s")))
    host, costs = read_host("1GB", None, file, Costs(interconnect=file.interconnect))
    assert host == Host(10**9, "cpu") and "cpu" in costs.specs
    links = {name: costs.interconnect.link("host", name) for name in ("cuda:0", "cuda:1", "cuda:2")}
    assert links == {"cuda:0": PCIE.default, "cuda:1": Link(10**9), "cuda:2": PCIE.default}
    assert costs.interconnect.link("cuda:1", "host") == Link(10**9)
    alike = parse_devices(devices_file(tmp_path))
    _, costs = read_host("1GB", "2GB/s,3us", alike, Costs())
    links = costs.interconnect.links
    assert set(links.values()) == {Link(2 * 10**9, 3000)} and len(links) == 6


@pytest.mark.parametrize(
    ("links", "interconnect", "options", "message"),
    [
        ([("host", "cuda:0", "1GB/s")], {}, ["--host-link", "1GB/s"], "--host-link and [[links]]"),
        ([], {"charging": '"host_staged"'}, [], "leave charging of the interconnect out"),
        ([], {"overlap": "true"}, [], "leave overlap of the interconnect out"),
    ],
)
def test_links_that_plans_with_a_host_do_not_know(
    links, interconnect, options, message, refuses, tmp_path
):
    file = devices_file(tmp_path, *links, **interconnect)
    refuses([*HOST, "--devices", file, *options], message)


ROADS = {
    "plan": ["plan", MODEL, "--objective", "latency", "--memory-model", "weights"],
    "serve": ["serve", MODEL, *REQUEST, "--objective", "token"],
    "serve --host": [
        *("serve", MODEL, *REQUEST, "--objective", "token", "--host", "1MB"),
        *("--host-link", "1MB/s"),
    ],
}
ENDS = ["--pin", "model.embed_tokens=cuda:0", "--pin", "lm_head=cuda:2"]


@pytest.mark.parametrize("road", ROADS)
def test_devices_pins_and_outputs_mean_the_same_on_all_roads(road, tmp_path, answer, refuses):
    words = [*ROADS[road], *ENDS, "--time-limit", "0.5", "--deterministic"]
    slow, fast = (
        [("cuda:0", "cuda:2", rate), ("cuda:0", "cuda:1", rate), ("cuda:1", "cuda:2", rate)]
        for rate in ("1MB/s", "1GB/s")
    )
    out, page, values = str(tmp_path / "plan.json"), tmp_path / "plan.html", []
    for links, written in ((slow, out), (fast, page)):
        file = devices_file(tmp_path, *links, memory="150KB")
        found = answer([*words, "--devices", file, "--without", "rotations", "--out", written])
        values.append(found["value"] if "value" in found else found["objective"])
        assert "rotations" not in {step["step"] for step in found["log"]}
    # What crosses to the last device takes longer by a slow link.
    assert values[0] > values[1]
    file = devices_file(tmp_path, *fast, memory="800KB")
    words = [*ROADS[road], "--devices", file, "--time-limit", "0.5", "--deterministic", "--solver"]
    best, greedy = (answer([*words, solver]) for solver in ("auto", "greedy"))
    key = "value" if "value" in best else "objective"
    assert 0 < best[key] <= greedy[key]
    assert f"<h1>{MODEL}" in page.read_text(encoding="utf-8")
    stages = answer(["split", MODEL, "--plan", out])["stages"]
    for module, device in (("embed_tokens", "cuda:0"), ("lm_head", "cuda:2")):
        assert [s["device"] for s in stages if module in s["modules"]] == [device]
    for option, says in (
        (["--pin", "lm_head=cuda:9"], "pin 'lm_head': there is no device 'cuda:9'; the devices"),
        (["--pin", "head=cuda:1"], "pin 'head': there is no such module or operator; did you mean"),
        (["--without", "nothing"], "--without: step 'nothing' is unknown; "),
        (["--solver", "nothing"], "nothing"),
        (["--time-limit", "soon"], "--time-limit"),
        (["--out", str(tmp_path / "plan.pdf")], "plan.pdf ends in '.pdf'; write .json"),
    ):
        refuses([*ROADS[road], "--devices", file, *option], says)
