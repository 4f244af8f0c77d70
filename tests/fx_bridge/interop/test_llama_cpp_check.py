"""The engine asked what a line needs; a small program stands for it."""

import pytest

from fx_bridge.interop.llama_cpp_check import check_by_engine
from solver import PartitionError
from tests.support.refusals import refused

MIB = 2**20


@pytest.fixture
def engine(tmp_path):
    """Write a program that prints a text, and keeps its arguments."""

    def write(prints, ends=0, errors=""):
        program = tmp_path / "llama-fit-params"
        program.write_text(
            "#!/usr/bin/env python3\nimport sys\n"
            f"open({str(tmp_path / 'given')!r}, 'w').write(repr(sys.argv[1:]))\n"
            f"print({prints!r}); print({errors!r}, file=sys.stderr)\n"
            f"sys.exit({ends!r})\n"
        )
        program.chmod(0o755)
        return str(program)

    return write


def test_each_number_is_rounded_up(engine, tmp_path):
    program = engine("a line before\nRPC0 3757 544 172 \nHost 532 0 72 \n")
    assert check_by_engine(["-m", "a b.gguf", "-c", "4096"], program=program) == {
        "RPC0": (3758 + 545 + 173) * MIB,
        "Host": (533 + 1 + 73) * MIB,
    }
    given = ["-m", "a b.gguf", "-c", "4096", "-fitp", "on"]
    assert (tmp_path / "given").read_text() == repr(given)


@pytest.mark.parametrize(
    ("prints", "ends", "errors", "message"),
    [
        ("", 1, "usage\nerror: invalid argument: --bad\nmore", "says 'error: invalid argument"),
        ("", 0, "0.00.036.441 E load: failed to load model", "says 'load: failed to load model'"),
        ("RPC0 1 2 3 ", -6, "aborted", "says 'nothing'; run it by hand, or leave --check out"),
        ("RPC0 x 2 3", 0, "", "refuses the line"),
    ],
)
def test_what_the_engine_refuses(engine, prints, ends, errors, message):
    with refused(message):
        check_by_engine([], program=engine(prints, ends, errors))


def test_an_engine_that_does_not_answer_or_is_missing(tmp_path):
    program = tmp_path / "llama-fit-params"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    with pytest.raises(PartitionError, match=r"did not answer in 0\.2 s; run it by hand"):
        check_by_engine([], program=str(program), seconds=0.2)
    missing = str(tmp_path / "none")
    with pytest.raises(PartitionError, match=r"none is not installed; build it with llama\.cpp"):
        check_by_engine([], program=missing)
    program.write_text("#!/none/such\n")
    with pytest.raises(PartitionError, match=r"leave --check out"):
        check_by_engine([], program=str(program))
