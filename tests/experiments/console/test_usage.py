"""What the library advises, said in options."""

from experiments.cli import main
from experiments.console.usage import in_options


def test_fields_of_the_library_are_options_of_the_command_line():
    told = "'h' is divided; plan with Placement(keep_whole=['h.0', 'h.1'])"
    assert in_options(told) == "'h' is divided; plan with --keep-whole 'h.0' --keep-whole 'h.1'"
    assert in_options("pin 'h': there is no device") == "pin 'h': there is no device"
    told = "fix it by capture(..., constants=['grid', 'sizes']); otherwise pass arguments"
    assert (
        in_options(told)
        == "fix it by --constant 'grid' --constant 'sizes'; otherwise pass arguments"
    )
    told = "check=True runs it; capture it as for the plan (constants, check)"
    assert in_options(told) == "--check runs it; capture it as for the plan (--constant, --check)"
    told = "which may not be whole layers; plan with solver='chain'"
    assert in_options(told) == "which may not be whole layers; plan with --solver chain"


def test_what_the_library_advises_is_said_in_options(tmp_path, capsys):
    devices = tmp_path / "devices.toml"
    devices.write_text(
        '[[devices]]\nmemory = "1GB"\ncount = 2\n[interconnect]\ncharging = "host_staged"\n'
    )
    file, graph = str(devices), str(tmp_path / "graph.json")
    assert main(["generate", "layered", "--operators", "9", "--devices", "2", "--out", graph]) == 0
    for words, advice in (
        (["--devices", file, "--schedule", "1f1b"], "leave --schedule out"),
        (["--pin", "8.layer0=9"], "give more devices or --chunks"),
    ):
        assert main(["solve", graph, *words]) == 2
        assert capsys.readouterr().err.endswith(f"{advice}\n")
