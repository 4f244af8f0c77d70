"""Our own sources as trees of syntax: files, rooms, and what imports what."""

import ast
import functools
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support.paths import ROOT

PACKAGES = ("solver", "fx_bridge", "experiments")


@functools.cache
def files(package: str) -> tuple[Path, ...]:
    """All Python files below a folder, by path from the root."""
    found = sorted(file.relative_to(ROOT) for file in (ROOT / package).rglob("*.py"))
    assert found, package
    return tuple(found)


@functools.cache
def text_of(file: Path) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


@functools.cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(text_of(file), str(file))


@functools.cache
def imported_by(file: Path) -> frozenset[str]:
    """The modules that any import statement of a file names, wherever it stands.

    What is imported from a module may be a module itself, so both names are there. Statements in
    functions and under ``TYPE_CHECKING`` count like those at the top.
    """
    names: set[str] = set()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level and node.module, f"{file}: write the whole name of the module"
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


@functools.cache
def files_imported_by(file: Path) -> frozenset[Path]:
    """Our own files behind those names."""
    found = set()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            found |= {file_of(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found.add(file_of(f"{node.module}.{alias.name}") or file_of(node.module))
    return frozenset(found - {None, file})


@functools.cache
def file_of(module: str) -> Path | None:
    """The file of a module of ours; None if there is none."""
    path = Path(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if (ROOT / file).is_file():
            return file
    return None


@functools.cache
def importers() -> Mapping[Path, frozenset[Path]]:
    """The files, tests among them, that import each of our own."""
    found: dict[Path, set[Path]] = {}
    for package in (*PACKAGES, "tests"):
        for file in files(package):
            for imported in files_imported_by(file):
                found.setdefault(imported, set()).add(file)
    return {file: frozenset(others) for file, others in found.items()}


def tests_of(file: Path) -> tuple[Path, ...]:
    """The test files of a source file: the one of its name, or those nearest to it.

    Where none has its name they are those that import it or, without any, those that import a
    file that does; of these the ones in the nearest folder. Without any they are those of its room.
    """
    own = Path("tests", file.parent, f"test_{file.name}")
    if (ROOT / own).is_file():
        return (own,)
    seen, level = {file}, {file}
    while level:
        level = set().union(*(importers().get(each, ()) for each in level)) - seen
        found = sorted(each for each in level if each.name.startswith("test_"))
        if found:
            shared = {each: _shared_folders(each, own) for each in found}
            return tuple(each for each in found if shared[each] == max(shared.values()))
        seen |= level
    # Run by name, in processes of its own.
    return tuple(each for each in files("tests") if each.match(f"{own.parent}/test_*.py"))


def _shared_folders(first: Path, second: Path) -> int:
    return len(Path(os.path.commonpath([first.parent, second.parent])).parts)


def module_of(file: Path) -> str:
    return ".".join(file.with_suffix("").parts).removesuffix(".__init__")


def circles(arrows: Mapping[object, set]) -> list[list]:
    """Groups of two or more nodes that all lead to each other, each sorted.

    Source: Tarjan, "Depth-first search and linear graph algorithms", SIAM J. Comput. 1, 1972.
    """
    index: dict = {}
    low: dict = {}
    stack: list = []
    found: list[list] = []

    def visit(node: object) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(arrows.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return found


def functions(file: Path) -> Iterator[tuple[str, int]]:
    """Name and lines of every function of a file, from ``def`` to its end without the docstring."""

    def within(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{prefix}{child.name}", _lines(child)
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from within(child, f"{prefix}{child.name}.")
            else:
                yield from within(child, prefix)

    yield from within(tree_of(file), "")


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        assert first.end_lineno is not None
        lines -= first.end_lineno - first.lineno + 1
    return lines


def docstrings(file: Path) -> Iterator[str]:
    """The docstrings of a file, its classes and functions, without their indents."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield text
