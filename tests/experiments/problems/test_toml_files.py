import pytest

from experiments.problems.toml_files import read_toml
from solver import PartitionError
from tests.support.refusals import refused


def test_a_file_is_its_table(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('name = "<script>"\n[limits]\nseconds = 3\n', encoding="utf-8")
    assert read_toml(path, "an example") == {"name": "<script>", "limits": {"seconds": 3}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = ", "a.toml: not valid TOML"),
        (f"number = {'9' * 5000}", "a.toml: not valid TOML"),
        (f"deep = {'[' * 20000}", "a.toml is nested too deeply to be an example"),
        (f"{'a.' * 3000}a = 1", "a.toml is nested too deeply"),
        ("a = 1\na = 2", "a.toml: not valid TOML (Cannot overwrite a value"),
    ],
)
def test_what_is_no_toml_is_one_line_with_the_file(tmp_path, text, says):
    path = tmp_path / "a.toml"
    path.write_text(text, encoding="utf-8")
    with refused(says):
        read_toml(path, "an example")


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path):
    with pytest.raises(PartitionError, match=r"missing\.toml.*give a TOML file"):
        read_toml(tmp_path / "missing.toml", "an example")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(PartitionError, match=r"b\.toml is not UTF-8 text"):
        read_toml(tmp_path / "b.toml", "an example")
