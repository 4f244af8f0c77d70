"""Markdown pages as a reader meets them: blocks to run, what they print, headings and links.

What a fenced block is depends on its language:

* ``python``: run, in the order of the page, in one namespace. A first line ``# NAME.py`` makes it a
  file that the reader saves instead; so does ``# NAME.toml`` in a ``toml`` block.
* ``sh``: commands, run in the order of the page in one folder.
* ``console``: the same, each command after ``$`` and followed by what it prints.
* ``text``: what the block before it prints; of several commands the last one.

No other block is allowed, and no indented one, so that none escapes. Output is compared line by
line, after :func:`comparable`; ``...`` is what a page leaves out of a line, and alone lines.
A command ends with code 0, but for one that the page shows to end with ``error:``.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from experiments.cli import main
from tests.support.paths import ROOT

PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
TERMINAL_PAGE: Final = (ROOT / "docs" / "terminal.md").read_text(encoding="utf-8")

RUN: Final = ("python", "sh", "console")
SAVED: Final = re.compile(r"# ([\w.-]+\.(?:py|toml))$")
TIMEOUT_S: Final = 3600
"""Of a command; coverage of all models takes most of it."""

# Times of the clock, as these programs print them, and nothing else. Loads of devices look like
# times too, but are computed and compared.
_CLOCKS: Final = (
    (re.compile(r"\bin \d[\d.]* (?:ns|us|ms|s|min)\b"), "in # s"),
    # The tables of pipelines that ran: their last columns, after a size in bytes.
    (re.compile(r"(?<=B )\d[\d.]* (?:ns|us|ms|s)$"), "# s"),
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block; `shown` is the text of the ``text`` block that follows it, or None."""

    page: str
    line: int
    language: str
    text: str
    shown: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a block, with what it prints if the page shows that."""

    text: str
    shown: str | None = None


def name_of(path: Path) -> str:
    """Return the path of a page within the repository, or the name of another one."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name


def read_blocks(path: Path) -> tuple[Block, ...]:
    """Return the blocks of a page; AssertionError for one without a language, or indented."""
    blocks: list[Block] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    page = name_of(path)
    index = 0
    while index < len(lines):
        line = lines[index]
        where = f"{page}:{index + 1}"
        if line.startswith("    ") and (index == 0 or not lines[index - 1].strip()):
            raise AssertionError(f"{where}: an indented block; write a fence with its language")
        if "```" not in line:
            index += 1
            continue
        opening = re.fullmatch(r"```(\w+)", line)
        assert opening, f"{where}: {line!r} opens no block; write a fence with its language"
        end = lines.index("```", index + 1)
        text = "\n".join(lines[index + 1 : end]) + "\n"
        block = Block(page, index + 1, opening[1], text)
        before = blocks[-1] if blocks else None
        if block.language == "text" and before and _has_output(before, lines[: index + 1]):
            blocks[-1] = Block(page, before.line, before.language, before.text, text)
        else:
            blocks.append(block)
        index = end + 1
    return tuple(blocks)


def _has_output(block: Block, lines: list[str]) -> bool:
    """Return whether a text block below `lines` is what `block` prints: it is in its section."""
    if block.language not in ("python", "sh") or block.shown is not None:
        return False
    end = lines.index("```", block.line)
    return not any(line.startswith("#") for line in lines[end:])


def first_line(block: Block) -> str:
    """Return what names a block that is not run."""
    return _spaced(block.text.strip("\n").partition("\n")[0])


def commands(block: Block) -> tuple[Command, ...]:
    """Return the commands of a block of the language ``sh`` or ``console``."""
    joined = block.text.replace("\\\n", " ")
    if block.language == "sh":
        found = [Command(_spaced(line)) for line in joined.splitlines() if line.strip()]
        return (*found[:-1], Command(found[-1].text, block.shown))
    parts = re.split(r"(?m)^\$ ", joined)
    assert not parts[0].strip(), f"{block}: a console block begins with '$ ' and a command"
    split = [part.partition("\n") for part in parts[1:]]
    return tuple(Command(_spaced(words), shown) for words, _, shown in split)


def _spaced(line: str) -> str:
    return " ".join(line.split())


def comparable(text: str) -> list[str]:
    """Return the lines of an output without what differs between two runs, and their widths."""
    lines = []
    for line in text.strip("\n").splitlines():
        spaced = re.sub(r"-{3,}", "---", " ".join(line.split()))
        for pattern, replacement in _CLOCKS:
            spaced = pattern.sub(replacement, spaced)
        lines.append(spaced)
    return lines


def difference(shown: str, printed: str) -> str | None:
    """Return how what a page shows differs from what was printed, or None."""
    expected, found = comparable(shown), comparable(printed)
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else re.escape(line).replace(r"\.\.\.", ".*") + "\n"
        for line in expected
    )
    if re.fullmatch(pattern, "".join(f"{line}\n" for line in found)):
        return None
    return "the page shows\n{}\nbut printed was\n{}".format("\n".join(expected), printed)


@dataclass(slots=True)
class Reader:
    """Does what a page says, in one folder and one namespace.

    Parameters
    ----------
    folder : Path
        The current folder of the process; links to what commands name are put there.
    left_out : collection of str
        Commands that are not run, and first lines of blocks that nothing prints.
    """

    folder: Path
    left_out: Collection[str] = ()
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__page__"})

    def read(self, path: Path) -> list[str]:
        """Run the blocks of a page, and return the commands that were left out."""
        for name in ("benchmarks", "docs", "README.md"):
            (self.folder / name).symlink_to(ROOT / name)
        left_out: list[str] = []
        for block in read_blocks(path):
            if saved := SAVED.match(block.text.partition("\n")[0]):
                (self.folder / saved[1]).write_text(block.text, encoding="utf-8")
            elif block.language == "python":
                self._python(block)
            elif block.language in RUN:
                left_out += [text for text in self._commands(block) if text in self.left_out]
            elif first_line(block) in self.left_out:
                left_out.append(first_line(block))
            else:
                raise AssertionError(f"{block}: nothing runs or prints this {block.language} block")
        return left_out

    def _python(self, block: Block) -> None:
        printed = io.StringIO()
        # As many empty lines as are above the block: tracebacks then name lines of the page.
        code = compile("\n" * block.line + block.text, block.page, "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, self.namespace)
        if block.shown is not None:
            found = difference(block.shown, printed.getvalue())
            assert found is None, f"{block}: {found}"

    def _commands(self, block: Block) -> list[str]:
        found = commands(block)
        for command in found:
            if command.text in self.left_out:
                continue
            code, output, errors = run_command(command.text, self.folder)
            where = f"{block}: {command.text!r}"
            if re.search(r"(?m)^error:", command.shown or ""):
                assert code, f"{where} ends with code 0"
                output = errors
            else:
                assert code == 0, f"{where} ends with code {code}:\n{errors}"
            if command.shown:
                told = difference(command.shown, output)
                assert told is None, f"{where}: {told}"
        return [command.text for command in found]


def run_command(text: str, folder: Path) -> tuple[int, str, str]:
    """Run a command; return its code and what it wrote to standard output and standard error."""
    words = shlex.split(text)
    if words[0] == "fxpartition" and not {"&&", "|", ">"} & {*words}:
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = main(words[1:])
        return code, output.getvalue(), errors.getvalue()
    scripts = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=_environment(os.environ, scripts),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def _environment(given: Mapping[str, str], scripts: Path) -> dict[str, str]:
    return {
        **given,
        "PATH": os.pathsep.join((str(scripts), given["PATH"])),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), given.get("PYTHONPATH")))),
        "OMP_NUM_THREADS": "1",
    }


# -- headings and links -------------------------------------------------------------------------


def without_blocks(text: str) -> str:
    """Return a page's text without fenced blocks and code in the line."""
    text = re.sub(r"(?ms)^```.*?^```$", "", text)
    return re.sub(r"`[^`]*`", "", text)


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    text = re.sub(r"(?ms)^```.*?^```$", "", path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for heading in re.findall(r"(?m)^#+ (.+)$", text):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 1
        unique = slug
        while unique in found:
            unique, number = f"{slug}-{number}", number + 1
        found.add(unique)
    return found


def links(path: Path) -> tuple[str, ...]:
    """Return the targets of a page's links and pictures, without those of other sites."""
    text = without_blocks(path.read_text(encoding="utf-8"))
    found = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"(?:src|href)=\"([^\"]+)\"", text)
    return tuple(target for target in found if "://" not in target)


def broken_links(path: Path) -> list[str]:
    """Return the links of a page that lead to no file, or to no heading of it."""
    broken = []
    for target in links(path):
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    return broken


def told_keys(heading, table=0):
    """Keys of a JSON object that a table below a heading of ``docs/terminal.md`` names."""
    section = re.split(r"(?m)^#{2,} ", TERMINAL_PAGE.partition(f"\n{heading}\n")[2])[0]
    tables = re.findall(r"(?ms)^\| key.*?(?=\n\n|\Z)", section)
    cells = re.findall(r"(?m)^\| (`.*?) \|", tables[table])
    return {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}
