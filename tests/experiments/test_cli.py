"""Tests of the command line: what it prints, writes and exits with."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.cli import main
from experiments.commands.app import app
from experiments.console.exit_codes import EXIT_NO_PLAN
from experiments.workloads import reader as workloads
from solver import SOLVERS, load_plan

COMMANDS = [str(command.name) for command in app.registered_commands]
LIGHT = {
    0: ["--help", *(f"{name} --help" for name in COMMANDS), "models", "devices", "planners"],
    2: [
        "plan gtp2",
        "plan mlp",
        "plan no_such_module:make",
        "score {saved} no_such_module:make",
        "plan mlp --devices 2x3GB@a100",
        "plan mlp.pt2 --devices 2x3GB",
        "plan mlp --devices 2x3GB --keep-whole a+",
        "plan mlp --devices 2x3GB --pin a=cuda:7",
        "plan mlp --devices 2x3GB --profile none.json",
        "plan mlp --devices 2x3GB --without nothing",
        "plan {saved} --pin nothing=1",
        "solve {saved} --devices 2x3GB@a100",
        "serve mlp --devices 2x3GB@a100",
        "serve mlp --devices 2x3GB --link slow",
        "serve mlp --devices 2x3GB --host 64GB --for llama.cpp --words '-ngl foo'",
        "score mlp none.json",
        "split mlp --plan none.json",
        "hand-over mlp none.json",
        "run mlp --devices 2x3GB@a100",
        "run mlp --devices 2x3GB --memory-model training --optimizer sgd",
        "compare mlp --planner nobody",
        "profile mlp.pt2",
        "sweep none.toml --out none.db",
        "report {saved}",
    ],
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The five-layer model as a saved problem on three devices."""
    path = tmp_path_factory.mktemp("saved") / "problem.json"
    assert main(["export", "mlp", "--devices", "3x350KiB", "--out", str(path)]) == 0
    return path


SCRIPT = """
import json, shlex, sys
from experiments.cli import main
lines, heavy = map(json.loads, sys.argv[1:])
for code, line in lines:
    try:
        found = main(shlex.split(line))
    except SystemExit as error:
        found = error.code
    loaded = set(heavy) & set(sys.modules)
    if found != code or loaded:
        sys.exit(f"{line}: {found}, {loaded}")
"""


def loads_none(heavy, lines):
    """Tests that command lines end as they should in a process that loads no heavy module."""
    words = [sys.executable, "-c", SCRIPT, json.dumps(lines), json.dumps(heavy)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_needs_no_model_loads_no_torch(saved):
    lines = [(code, line.format(saved=saved)) for code, of in LIGHT.items() for line in of]
    loads_none(["torch", "ortools", "transformers"], lines)


def test_saved_problems_load_no_torch(saved, tmp_path):
    plan, report = tmp_path / "plan.json", tmp_path / "report"
    lines = [
        f"solve {saved} --pin linear=cuda:0 --cut-after linear_1 --out {plan}",
        f"plan {saved} --devices 2x1GB",
        f"score {plan} {saved}",
        f"compare {saved} --planner greedy --out {report}",
        f"report {report / 'results.json'}",
        f"generate layered --operators 20 --out {tmp_path / 'made.json'}",
    ]
    loads_none(["torch", "transformers"], [(0, line) for line in lines])


def test_cuts_and_pins_of_modules_and_operators(saved, answer):
    words = ["--cut-after", "2", "--pin", "0=cuda:1,cuda:2", "--pin", "8=2"]
    found = answer(["plan", "mlp", "--devices", "3x1GiB", *words])
    assert found["status"] == "optimal"
    order, assignment = found["device_order"], found["assignment"]
    stage = {name: order.index(device) for name, device in assignment.items()}
    assert stage["linear_1"] < stage["linear_2"]
    assert stage["linear_4"] == 2
    assert assignment["linear"] in ("cuda:1", "cuda:2")
    # A saved problem has operators, and may need the chunks for its cuts.
    cuts = [word for name in ("linear", "linear_1", "linear_2") for word in ("--cut-after", name)]
    assert answer(["plan", str(saved), *cuts, "--chunks", "2"])["status"] == "optimal"


def test_a_plan_file_says_by_which_regions_operators_run_again(tmp_path, capsys, answer):
    out, saved = str(tmp_path / "plan.json"), str(tmp_path / "problem.json")
    words = ["mlp", "--devices", "2x1GB", "--memory-model", "training"]
    asked = ["--recompute", "all", "--recompute", "2=never", "--regions", "[04]"]

    found = answer(["plan", *words, "--solver", "chain", *asked, "--out", out])
    plan = load_plan(out)
    assert found["recomputed"] == sorted(plan.recomputed)
    assert {"linear", "relu"} <= plan.recomputed and "linear_1" not in plan.recomputed
    # The last layer that is named ends with its module.
    starts = ["linear", "linear_2", "relu_2"]
    assert found["region_starts"] == list(plan.region_starts) == starts
    assert answer(["split", "mlp", "--plan", out])["equal"] is True
    score = ["score", out, *words, "--recompute", "auto"]
    assert answer(score)["feasible"] is True
    assert main([*score, "--regions", "2"]) == EXIT_NO_PLAN
    assert "broken: a region begins at operator 'linear_1' in the problem, but not in the plan" in (
        capsys.readouterr().out
    )
    # A saved problem knows no modules, but its regions.
    assert main(["export", *words, *asked, "--out", saved]) == 0
    assert main(["solve", saved, "--solver", "chain", "--out", out]) == 0
    assert load_plan(out) == plan


@pytest.mark.parametrize("solver", [name for name in SOLVERS if name != "auto"])
def test_every_solver_can_be_chosen(saved, solver, answer):
    assert answer(["solve", str(saved), "--solver", solver])["solver"] == solver


def test_a_report_of_results_that_exist(saved, tmp_path, capsys, refuses, answer):
    folders = [tmp_path / "first", tmp_path / "second"]
    words = ["compare", str(saved), "--planner", "greedy", "--planner", "chain"]
    assert main([*words, "--out", str(folders[0])]) == 0
    compared = capsys.readouterr().out
    results = str(folders[0] / "results.json")
    assert main(["report", results, "--out", str(folders[1])]) == 0
    assert capsys.readouterr().out == compared
    first, second = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*")}
        for folder in folders
    )
    assert first == second
    assert answer(["report", results])["schema"] == "fxpartition.study"
    refuses(["report", str(saved)], "expected 'fxpartition.study'")


BAD_INPUT = [
    (["plan", "mlp"], "--devices is missing"),
    (["report", ""], "RESULTS is empty; write a name such as results.sqlite"),
    (["plan", "mlp", "--devices", "80GiB@zzz"], "device class 'zzz' is unknown"),
    (["plan", "mlp", "--memory-model", "all"], "is 'all'; write one of weights, inference, trai"),
    (["plan", "mlp", "--optimizer", "lion"], "--optimizer is 'lion'; write one of sgd, mom"),
    (["run", "mlp", "--steps", "3"], "no option --steps, which is one of plan, serve, solve"),
    (["plan", "nothing_here:make", "--devices", "1GiB"], "cannot import nothing_here"),
    (["plan", "empty_model:make", "--devices", "1GiB"], "no operators"),
    (["plan", "odd_model:make", "--devices", "1GiB"], "error: "),
    (["solve", "list.json"], "not an object"),
    (["solve", "none.json"], "no operators"),
    (["split", "mlp", "--plan", "other_plan.json"], "error: "),
    (["split", "none.json", "--plan", "no.json"], "is a saved problem; name a model that can be"),
    (["compare", "gtp2"], "did you mean gpt2"),
    (["compare", "mlp", "--quick"], "--quick has models of its own"),
    (["compare", "mlp", "--out", "list.json"], "give --out a folder"),
    (["compare", "empty_model:make"], "no model could be compared"),
    (["pla"], "No such command"),
]


@pytest.fixture
def scene(tmp_path, monkeypatch):
    """A working directory with files that are wrong in many ways."""
    (tmp_path / "list.json").write_text("[]")
    graph = {"directed": True, "multigraph": False, "graph": {}, "nodes": [], "edges": []}
    problem = {"schema": "fxpartition.problem", "version": 2, "graph": graph}
    (tmp_path / "none.json").write_text(json.dumps({**problem, "devices": [{"name": "a"}]}))
    plan = {"schema": "fxpartition.plan", "version": 2, "device_order": ["a"]}
    plan["assignment"] = {"x": "a"}
    (tmp_path / "other_plan.json").write_text(json.dumps(plan))
    (tmp_path / "empty_model.py").write_text(
        "import torch\nclass Same(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
        "def make():\n    return Same(), (torch.ones(1),)\n"
    )
    (tmp_path / "odd_model.py").write_text(
        "import torch\nclass Odd(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x if x.sum() > 0 else -x\n"
        "def make():\n    return Odd(), (torch.ones(1),)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "says"), BAD_INPUT, ids=[" ".join(words) for words, _ in BAD_INPUT]
)
def test_bad_input_is_one_line_and_exit_code_2(scene, words, says, refuses):
    # Before the error there may be progress, one line each; after it, nothing.
    refuses(words, says)


def test_ctrl_c_is_one_line_and_130(saved, capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(workloads, "load_json", interrupt)
    assert main(["solve", str(saved)]) == 130
    assert capsys.readouterr().err.strip() == "interrupted"


def test_a_model_cannot_end_the_program_or_print_into_an_answer(
    saved, tmp_path, monkeypatch, capsys, answer
):
    (tmp_path / "talkative_of_test.py").write_text(
        "import sys, torch\nprint('imported')\n"
        "class Loud(torch.nn.Linear):\n"
        "    def forward(self, x):\n        print('forward')\n        return super().forward(x)\n"
        "class Quits(torch.nn.Module):\n    def forward(self, x):\n        sys.exit(7)\n"
        "class Stubborn(torch.nn.Module):\n    def eval(self):\n        raise ValueError('no')\n"
        "class Odd:\n    def __getattr__(self, name):\n        raise RuntimeError(name)\n"
        "odd = Odd()\n"
        "def loud():\n    print('made')\n    return Loud(4, 4), (torch.ones(1, 4),)\n"
        "class Zoo:\n    made = staticmethod(loud)\n"
        "def quits():\n    sys.exit(7)\n"
        "class Rare(BaseException):\n    pass\n"
        "class Rarely(torch.nn.Module):\n    def forward(self, x):\n        raise Rare('now')\n"
        "def rare():\n    raise Rare('now')\n"
        "def rarely():\n    return Rarely(), (torch.ones(1),)\n"
        "def quits_later():\n    return Quits(), (torch.ones(1),)\n"
        "def stubborn():\n    return Stubborn(), (torch.ones(1),)\n"
    )
    (tmp_path / "quitting_of_test.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    devices = ["--devices", "1MB"]
    assert answer(["plan", "talkative_of_test:Zoo.made", *devices])["status"] == "optimal"
    for model, says in (
        ("quitting_of_test:make", "module quitting_of_test calls sys.exit(0)"),
        ("talkative_of_test:quits", "calls sys.exit(7)"),
        ("talkative_of_test:quits_later", "calls sys.exit(7)"),
        ("talkative_of_test:rare", "raises Rare (now), which is no Exception"),
        ("talkative_of_test:rarely", "raises Rare (now), which is no Exception"),
        ("talkative_of_test:stubborn", "ValueError: no"),
        ("talkative_of_test:odd.make", "has no 'odd.make'"),
    ):
        assert main(["plan", model, *devices]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert says in captured.err.splitlines()[-1]
    words = ["compare", "talkative_of_test:quits", "talkative_of_test:quits_later", str(saved)]
    data = answer([*words, "talkative_of_test:loud", "--planner", "greedy", *devices])
    reasons = [model["reason"] for model in data["models"]]
    assert ["sys.exit(7)" in reason for reason in reasons] == [True, True, False, False]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX only")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_comparison_leaves_the_old_report_whole(saved, tmp_path, number, code):
    folder = tmp_path / "report"
    folder.mkdir()
    (folder / "report.md").write_text("mine")
    # The signal comes in the middle of writing.
    script = (
        "import os, signal, sys\nfrom experiments.cli import main\n"
        f"os.fsync = lambda handle: os.kill(os.getpid(), {int(number)})\n"
        f"sys.argv[1:] = ['compare', {str(saved)!r}, '--planner', 'greedy', '--out', "
        f"{str(folder)!r}]\nsys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    files = {path.name for path in folder.rglob("*") if path.is_file()}
    assert files == {"report.md"}
    assert (folder / "report.md").read_text() == "mine"


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="Linux only")
@pytest.mark.parametrize("where", ["> /dev/full", ">&-"])
def test_an_answer_that_cannot_be_printed_is_one_line_and_exit_code_2(saved, where):
    for words in ("models", f"solve '{saved}' --solver greedy"):
        command = f"'{sys.executable}' -m fxpartition {words} {where}"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stderr.startswith("error: ")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="Linux only")
@pytest.mark.parametrize("where", ["2> /dev/full", "2>&-", "2>&- <&-"])
def test_what_cannot_be_said_on_stderr_fails_nothing_and_is_not_in_the_answer(
    saved, tmp_path, where
):
    plan = tmp_path / "plan.json"
    for words, code in ((f"solve '{saved}' --solver greedy --json --out '{plan}'", 0), ("no", 2)):
        command = f"'{sys.executable}' -m fxpartition {words} {where}"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
        assert done.returncode == code
        assert (json.loads(done.stdout)["status"] == "feasible") if code == 0 else not done.stdout
    assert load_plan(plan).assignment


def test_a_file_that_is_read_is_not_written_over(saved, tmp_path, capsys):
    before = saved.read_bytes()
    (tmp_path / "link.json").symlink_to(saved)
    for words in (
        ["solve", str(saved), "--out", str(saved)],
        ["solve", str(saved), "--out", str(tmp_path / "link.json")],
        ["plan", str(saved), "--out", str(saved)],
        ["export", str(saved), "--out", str(saved)],
    ):
        assert main(words) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert "is the file that is read, which would be lost; write another name" in line
    assert saved.read_bytes() == before


def test_a_plan_may_come_through_a_pipe(saved, tmp_path, capsys):
    assert main(["solve", str(saved), "--out", str(tmp_path / "plan.json")]) == 0
    reading, writing = os.pipe()
    os.write(writing, (tmp_path / "plan.json").read_bytes())
    os.close(writing)
    try:
        assert main(["score", f"/dev/fd/{reading}", str(saved)]) == 0
    finally:
        os.close(reading)


def test_a_folder_that_was_removed_is_one_line(tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["models"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the current folder cannot be used: ")


def test_what_the_system_refuses_is_not_blamed_on_the_answer(saved, monkeypatch, capsys):
    for error, says in (
        (OSError(24, "Too many open files"), "the system refuses to go on: Too many open files"),
        (OSError(13, "Permission denied", "/x"), "cannot use /x: Permission denied"),
        (OSError(28, "No space left on device"), "cannot write the answer: No space left"),
    ):

        def fail(*_, error=error):
            raise error

        monkeypatch.setattr("experiments.commands.plan.solve_all", fail)
        assert main(["solve", str(saved)]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert says in line
