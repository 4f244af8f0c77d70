import gzip
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from solver.io.files import (
    check_file,
    check_folder_writable,
    read_json,
    read_text,
    write_text_atomically,
)
from solver.io.json_files import (
    load_plan,
    load_problem,
    plan_from_json,
    plan_to_json,
    problem_digest,
    problem_from_json,
    problem_to_json,
    save_plan,
    save_problem,
)
from solver.model.devices import Device, Interconnect, Link
from solver.model.errors import PartitionError
from solver.model.operators import Operator
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from tests.support.paths import ROOT
from tests.support.problem_counts import some
from tests.support.random_problems import hand_made_problem, random_plan, random_problem
from tests.support.refusals import REMOVE, changed, refused

PROBLEM = PartitionProblem(
    operators=(Operator("a", 3, value_bytes=8), Operator("b", 5, reads=("a",))),
    devices=(Device("gpu0", memory_bytes=100), Device("gpu1")),
    interconnect=Interconnect(links={("gpu0", "gpu1"): Link(10, 1)}),
    objective=("bottleneck", "transfer"),
)
PLAN = PartitionPlan({"a": "gpu0", "b": "gpu1"}, ("gpu0", "gpu1"))


# -- there and back -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", some(200, of=200))
def test_problems_with_their_digests_and_plans_survive_json(seed):
    draw = hand_made_problem if seed % 5 == 4 else random_problem
    problem = draw(seed, draw_chunks=seed % 2 == 0, relayed=seed % 3 == 0)
    again = problem_from_json(json.loads(json.dumps(problem_to_json(problem))))
    assert again == problem
    digest = problem_digest(problem)
    assert re.fullmatch("[0-9a-f]{64}", digest) and problem_digest(again) == digest
    assert problem_digest(problem.replace(max_devices=7)) != digest
    assert problem_digest(random_problem(seed + 1)) != digest
    plan = random_plan(problem, seed, draw_chunks=seed % 2 == 0)
    written = json.dumps(plan_to_json(plan, {"default": "a data sheet"}))
    assert json.loads(written)["times_from"] == {"default": "a data sheet"}
    again = plan_from_json(json.loads(written))
    assert again == plan
    assert list(again.assignment) == list(plan.assignment)


def test_problems_and_plans_survive_files(tmp_path):
    save_problem(PROBLEM, tmp_path / "problem.json")
    save_plan(PLAN, str(tmp_path / "plan.json"))
    assert load_problem(str(tmp_path / "problem.json")) == PROBLEM
    assert load_plan(tmp_path / "plan.json") == PLAN
    assert (tmp_path / "plan.json").read_text(encoding="utf-8").endswith("}\n")


def test_settings_that_are_left_out_have_the_defaults():
    data = problem_to_json(PROBLEM)
    for name in ("interconnect", "objective", "memory_model", "schedule", "microbatches"):
        del data[name]
    assert problem_from_json(data) == PROBLEM.replace(
        interconnect=Interconnect(), objective="bottleneck"
    )


def test_an_objective_may_be_one_name():
    data = {**problem_to_json(PROBLEM), "objective": "latency"}
    assert problem_from_json(data).objective == ("latency",)


# -- what is wrong with a document --------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "parts"),
    [
        (["schema"], "fxpartition.plan", ("schema is 'fxpartition.plan'", "fxpartition.problem")),
        (["schema"], REMOVE, ("schema is None", "fxpartition.problem")),
        (["version"], 1, ("version is 1", "this release reads 2")),
        (["version"], REMOVE, ("version is None", "this release reads 2")),
        (["graph"], REMOVE, ("graph is missing",)),
        (["devices"], REMOVE, ("devices is missing",)),
        (["wieghts"], 3, ("'wieghts' is unknown", "the fields are", "devices")),
        (["objective"], 3, ("objective is not a list", "write one")),
        (["objective"], ["bottleneck", 3], ("objective[1] is 3", "write a text")),
        (["memory_model"], ["weights"], ("memory_model is ['weights']", "write a text")),
        (["schedule"], None, ("schedule is None", "write a text")),
        (["microbatches"], "2", ("microbatches is '2'", "whole number")),
        (["cuts"], "a", ("cuts is not a list", "write one")),
        (["cuts"], [3], ("cuts[0] is 3", "write a text")),
        (["devices"], {}, ("devices is not a list",)),
        (["devices", 0], "gpu0", ("devices[0] is not an object",)),
        (["devices", 0, "name"], REMOVE, ("devices[0]", "name is missing")),
        (["devices", 0, "memory"], 5, ("devices[0]", "'memory' is unknown", "memory_bytes")),
        (["devices", 0, "is_host"], "no", ("devices[0]", "is_host is 'no'", "true or false")),
        (["interconnect"], [], ("interconnect is not an object",)),
        (["interconnect", "speed"], 1, ("interconnect", "'speed' is unknown", "charging")),
        (["interconnect", "default"], 4, ("interconnect: default is not an object",)),
        (
            ["interconnect", "default", "bandwidth_bytes_per_s"],
            1.5,
            ("interconnect: default", "bandwidth_bytes_per_s is 1.5", "whole number"),
        ),
        (["interconnect", "links"], {}, ("links is not a list",)),
        (["interconnect", "links", 0], 3, ("links[0] is not an object",)),
        (["interconnect", "links", 0, "source"], REMOVE, ("links[0]", "source is missing")),
        (["interconnect", "links", 0, "target"], 3, ("links[0]: target is 3", "write a text")),
        (["interconnect", "links", 0, "latency"], 3, ("links[0]", "'latency' is unknown")),
        (
            ["interconnect", "links", 1],
            {"source": "gpu0", "target": "gpu1"},
            ("links[1]", "'gpu0' -> 'gpu1'", "twice"),
        ),
        (["interconnect", "charging"], "free", ("charging is 'free'", "peer_to_peer")),
        (["interconnect", "charging"], ["peer_to_peer"], ("charging is", "peer_to_peer")),
        (["interconnect", "overlap"], 1, ("interconnect: overlap is 1", "write true or false")),
        (["graph"], [], ("graph is not an object",)),
        (["graph", "directed"], False, ("graph", "directed true")),
        (["graph", "multigraph"], True, ("graph", "multigraph false")),
        (["graph", "nodes"], REMOVE, ("graph: nodes is missing",)),
        (["graph", "edges"], {}, ("edges is not a list",)),
        (["graph", "graph"], [], ("graph: graph is not an object", "write one")),
        (["graph", "nodes", 0], "a", ("nodes[0] is not an object",)),
        (["graph", "nodes", 0, "id"], REMOVE, ("nodes[0]", "id is None", "write a text")),
        (["graph", "nodes", 1, "id"], "a", ("nodes[1]", "'a' is given twice")),
        (["graph", "edges", 0], 4, ("edges[0] is not an object",)),
        (["graph", "edges", 0, "source"], "z", ("edges[0]", "source is 'z'", "not a node")),
        (["graph", "edges", 0, "target"], REMOVE, ("edges[0]", "target is missing")),
        (["graph", "nodes", 0, "latency"], 5, ("'a'", "'latency' is unknown", "latency_ns")),
        (["graph", "nodes", 0, "latency_ns"], "5", ("'a'", "latency_ns is '5'", "whole number")),
        (
            ["graph", "nodes", 0, "backward"],
            {"gradient_bytes": -4},
            ("'a'", "backward: gradient_bytes is -4", "not negative"),
        ),
    ],
)
def test_a_wrong_problem_is_named_with_field_and_file(path, value, parts, tmp_path):
    data = changed(problem_to_json(PROBLEM), path, value)
    with refused(*parts):
        problem_from_json(data)
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    with refused(str(file), *parts):
        load_problem(file)


@pytest.mark.parametrize(
    ("path", "value", "parts"),
    [
        (["schema"], "fxpartition.problem", ("schema is", "fxpartition.plan")),
        (["version"], "1", ("version is '1'", "this release reads 2")),
        (["device_order"], REMOVE, ("device_order is missing",)),
        (["assignment"], REMOVE, ("assignment is missing",)),
        (["cost"], 3, ("'cost' is unknown", "assignment")),
        (["device_order"], "gpu0", ("device_order is not a list",)),
        (["device_order", 0], 0, ("device_order[0] is 0", "write a text")),
        (["chunks"], [], ("chunks is not an object",)),
        (["assignment"], ["a"], ("assignment is not an object",)),
        (["assignment", "a"], 0, ("assignment['a'] is 0", "write a text")),
        (["times_from"], "me", ("times_from is 'me'", "write a mapping")),
    ],
)
def test_a_wrong_plan_is_named_with_field_and_file(path, value, parts, tmp_path):
    data = changed(plan_to_json(PLAN), path, value)
    with refused(*parts):
        plan_from_json(data)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    with refused(str(file), *parts):
        load_plan(file)


@pytest.mark.parametrize("data", [None, 3, "text", [], [{}]])
def test_a_document_is_an_object(data):
    with refused("content is not an object"):
        problem_from_json(data)
    with refused("content is not an object"):
        plan_from_json(data)


def everywhere(entry, path=()):
    items = entry.items() if isinstance(entry, dict) else enumerate(entry)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from everywhere(value, (*path, key))


@pytest.mark.parametrize("wrong", [None, True, -1, 1.5, "?", [], {}, [None], {"?": None}, REMOVE])
def test_whatever_is_wrong_is_a_partition_error(wrong):
    accepted = rejected = 0
    documents = [
        (problem_to_json(random_problem(seed)), problem_from_json) for seed in (0, 3, 7)
    ] + [(plan_to_json(PLAN), plan_from_json), (problem_to_json(PROBLEM), problem_from_json)]
    for data, build in documents:
        for path in everywhere(data):
            try:
                build(changed(data, path, wrong))
            except PartitionError as error:
                assert str(error)
                rejected += 1
            else:
                accepted += 1
    assert rejected > accepted / 10


# -- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ("line 1", "not valid JSON", "give a JSON file")),
        (b'{\n"a": 1,\n}', ("line 3", "not valid JSON")),
        (b"\xff\xfe\x00", ("not UTF-8",)),
        (b"[" * 200_000, ("nested too deeply",)),
    ],
)
def test_what_is_not_json_is_named_with_file_and_line(content, parts, tmp_path):
    file = tmp_path / "broken.json"
    file.write_bytes(content)
    with refused(str(file), *parts):
        read_json(file)


def test_a_packed_file_is_unpacked(tmp_path):
    file = tmp_path / "problem.json.gz"
    file.write_bytes(gzip.compress('{"a": "ü"}'.encode()))
    assert read_json(file) == {"a": "ü"}


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"{}", ("not a whole gzip file", "pack it again")),
        (gzip.compress(b"{}" * 50)[:-9], ("not a whole gzip file",)),
        (gzip.compress(b"{}")[:10] + b"\xff" * 12, ("not a whole gzip file",)),
        (gzip.compress(b"\xff\xfe"), ("not UTF-8",)),
        (gzip.compress(b" " * 1001), ("holds more than 1,000 bytes", "give a JSON file")),
    ],
    # A packed file begins with the time of packing, which no two processes share.
    ids=["not packed", "cut off", "broken", "no text", "too large"],
)
def test_what_cannot_be_unpacked_is_named(content, parts, tmp_path):
    file = tmp_path / "broken.json.gz"
    file.write_bytes(content)
    with refused(str(file), *parts):
        read_text(file, "a JSON file", 1000)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX only")
def test_what_never_ends_is_not_read(tmp_path):
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(tmp_path / "socket"))
    (tmp_path / "zero").symlink_to("/dev/zero")
    with (tmp_path / "sparse").open("wb") as stream:
        stream.truncate(1 << 40)
    reading, writing = os.pipe()
    os.write(writing, b"x" * 2000)
    for name, kind in (("socket", "is a socket, not a file"), ("zero", "is a device, not a file")):
        with refused(name, kind, "give a JSON file"):
            read_json(tmp_path / name)
    for path in (tmp_path / "sparse", f"/dev/fd/{reading}"):
        with refused(str(path), "holds more than 1,000 bytes", "give a JSON file"):
            read_text(path, "a JSON file", 1000)
    bound.close()
    os.close(reading)
    os.close(writing)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX only")
def test_files_alone_are_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    for name, says in (
        ("pipe", "is a pipe, not a file"),
        (".", "is a folder, not a file"),
        ("missing", "there is no file"),
        ("null\0", "there is no file"),
        ("x" * 300, "File name too long"),
        ("file/file", "Not a directory"),
        ("loop", "cannot read"),
        ("/dev/null", "is a device, not a file"),
    ):
        with refused(says, "give a model"):
            check_file(tmp_path / name, "a model")
        # Only a pipe may be read too: who writes it ends it.
        if name != "pipe":
            with refused(says.replace("there is no file", "cannot read"), "give a JSON file"):
                read_json(tmp_path / name)
    check_file(tmp_path / "link", "a model")


def test_writing_replaces_the_file_and_leaves_no_other(tmp_path):
    file = tmp_path / "plan.json"
    longest = tmp_path / ("x" * 250 + ".json")
    for text in ("old", "new — with a dash"):
        for path in (file, longest):
            write_text_atomically(path, text)
            assert path.read_text(encoding="utf-8") == text
    assert {*tmp_path.iterdir()} == {file, longest}


def test_a_new_file_has_the_rights_that_the_umask_leaves(tmp_path):
    previous = os.umask(0o027)
    try:
        write_text_atomically(tmp_path / "plan.json", "text")
    finally:
        assert os.umask(previous) == 0o027  # and the umask is as it was
    assert stat.S_IMODE((tmp_path / "plan.json").stat().st_mode) == 0o640


def test_a_missing_folder_is_named(tmp_path):
    with refused("cannot write", "plan.json", "No such file"):
        write_text_atomically(tmp_path / "missing" / "plan.json", "text")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("function", "error", "expected"),
    [
        ("os.fsync", OSError(28, "No space left on device"), PartitionError),
        ("os.fsync", KeyboardInterrupt(), KeyboardInterrupt),
        ("pathlib.Path.replace", OSError(13, "Permission denied"), PartitionError),
        ("pathlib.Path.chmod", MemoryError(), MemoryError),
    ],
)
def test_a_failure_while_writing_leaves_the_old_file_whole(
    function, error, expected, tmp_path, monkeypatch
):
    file = tmp_path / "plan.json"
    file.write_text("old", encoding="utf-8")

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(function, fail)
    with pytest.raises(expected):
        write_text_atomically(file, "new" * 10_000)
    assert file.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_text_that_cannot_be_encoded_leaves_the_old_file_whole(tmp_path):
    file = tmp_path / "plan.json"
    file.write_text("old", encoding="utf-8")
    with refused("cannot write", "surrogates not allowed"):
        write_text_atomically(file, "\ud800")
    assert file.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="POSIX only")
def test_a_killed_writer_leaves_the_old_file_whole(tmp_path):
    file = tmp_path / "plan.json"
    file.write_text("old", encoding="utf-8")
    script = textwrap.dedent(
        """
        import os, signal, sys
        from solver.io.files import write_text_atomically
        os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
        write_text_atomically(sys.argv[1], "new" * 1000)
        """
    )
    finished = subprocess.run(
        [sys.executable, "-c", script, str(file)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert finished.returncode == -signal.SIGKILL
    assert file.read_text(encoding="utf-8") == "old"


# -- odd files ----------------------------------------------------------------------------------


def test_a_number_of_thousands_of_digits_is_named(tmp_path):
    file = tmp_path / "long.json"
    file.write_text('{"version": ' + "9" * 6000 + "}")
    with refused(str(file), "too many digits"):
        read_json(file)


def test_a_path_with_a_null_character_is_an_error_of_one_line(tmp_path):
    with refused("cannot write"):
        write_text_atomically("x\0.json", "text")
    with refused("cannot write to the folder"):
        check_folder_writable("x\0")


@pytest.mark.parametrize("version", [2.0, True, 1.0, "2", "1", [2], None])
def test_a_version_is_a_whole_number(version):
    """2.0 is equal to 2, but no release writes it."""
    with refused(f"version is {version!r}; this release reads 2"):
        problem_from_json({**problem_to_json(PROBLEM), "version": version})
    with refused(f"version is {version!r}; this release reads 2"):
        plan_from_json({**plan_to_json(PLAN), "version": version})


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX only")
def test_what_is_not_a_file_is_written_to_and_not_replaced(tmp_path):
    """Tests with a pipe what holds for /dev/null: replacing it would break the machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True)
    write_text_atomically(pipe, "text")
    assert reader.communicate(timeout=60)[0] == "text"
    assert pipe.is_fifo()


@pytest.mark.parametrize("name", ["loop", "other"])
def test_a_symbolic_link_to_itself_is_one_line(tmp_path, name):
    (tmp_path / "loop").symlink_to("other")
    (tmp_path / "other").symlink_to("loop")
    with refused("cannot write", name, "a symbolic link that leads to itself"):
        write_text_atomically(tmp_path / name, "text")
    with refused("cannot read", name):
        read_json(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loop", "other"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX only")
def test_a_pipe_is_read_to_its_end_however_slow_its_writer_is(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write():
        with pipe.open("w") as stream:
            for text in ('{"a": ', '"' + "x" * 200_000, '"}'):
                time.sleep(0.1)
                stream.write(text)
                stream.flush()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert read_json(pipe) == {"a": "x" * 200_000}
    finally:
        writer.join()


def test_a_symbolic_link_stays_one(tmp_path):
    file, link = tmp_path / "file.json", tmp_path / "link.json"
    file.write_text("old")
    link.symlink_to(file)
    write_text_atomically(link, "new")
    assert link.is_symlink()
    assert file.read_text() == "new"


def test_a_writable_folder_is_left_empty(tmp_path):
    check_folder_writable(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with refused("cannot write to the folder", "No such file", "write another path"):
        check_folder_writable(tmp_path / "missing")


@pytest.mark.parametrize("path", [None, 3.5])
def test_a_path_to_read_that_is_none_is_refused(path):
    with pytest.raises(PartitionError, match=r"path is .*; write the name of a file"):
        load_plan(path)


# -- digests ------------------------------------------------------------------------------------


def test_the_order_of_mappings_does_not_count_and_that_of_operators_does():
    links = {("gpu0", "gpu1"): Link(10, 1), ("gpu1", "gpu0"): Link(20, 2)}
    backwards = dict(reversed(links.items()))
    assert list(links) != list(backwards)
    one, other = (
        PROBLEM.replace(interconnect=Interconnect(links=ends)) for ends in (links, backwards)
    )
    assert one == other
    assert problem_digest(one) == problem_digest(other)
    pair = (Operator("a"), Operator("b"))
    orders = [PROBLEM.replace(operators=tuple(each)) for each in (pair, pair[::-1])]
    assert problem_digest(orders[0]) != problem_digest(orders[1])


def test_the_digest_of_a_problem_is_the_same_in_every_release():
    # What is stored under it is found again only as long as this holds.
    assert problem_digest(PROBLEM) == (
        "800ad3ef784e202321fe5116a688cd64962bf6917c6bf55c02f6fa7dcf6ff11c"
    )


@pytest.mark.parametrize(
    "name", ["<script>", "../../x", "a'; DROP TABLE cells; --", "a\n\x00\ud800"]
)
def test_any_name_has_a_digest(name):
    problem = PROBLEM.replace(operators=(Operator(name, 3),))
    assert problem_digest(problem) != problem_digest(PROBLEM.replace(operators=(Operator("n", 3),)))
