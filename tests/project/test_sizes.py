"""Files and functions are short; what is longer is listed, and gets no longer."""

from tests.support.sources import PACKAGES, files, functions, text_of

MOST_LINES_OF_FILES = 400
MOST_LINES_OF_FUNCTIONS = 60
"""From ``def`` to the last line, without the docstring."""


def test_files_are_short():
    sizes = {
        str(file): len(text_of(file).splitlines())
        for package in PACKAGES
        for file in files(package)
    }
    assert {name: size for name, size in sizes.items() if size > MOST_LINES_OF_FILES} == {}


def test_functions_are_short():
    sizes = {
        f"{file}:{name}": lines
        for package in PACKAGES
        for file in files(package)
        for name, lines in functions(file)
    }
    found = {name: size for name, size in sizes.items() if size > MOST_LINES_OF_FUNCTIONS}
    assert found == {}


def test_lines_of_functions_are_counted_without_their_docstring(tmp_path):
    source = tmp_path / "source.py"
    source.write_text(
        "class A:\n"
        "    @property\n"
        "    def a(\n        self,\n    ):\n"
        '        """One.\n\n        Two.\n        """\n'
        "        def inner():\n            return 1\n"
        "        return inner\n\n"
        "if A:\n    async def b(): pass\n"
    )
    assert dict(functions(source)) == {"A.a": 6, "A.a.inner": 2, "b": 1}
