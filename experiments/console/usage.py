"""Messages for errors of usage, with a remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_VALUE: Final = re.compile(r"Invalid value for '(-[\w-]+)'(?: / '-[\w-]+')*: (.*)", re.DOTALL)
_CHOICE: Final = re.compile(r"(?:Value error, )?.* is not one of (.*)", re.DOTALL)
_UNKNOWN: Final = re.compile(r"No such option: (--[\w-]+)")

_NAMES: Final = re.compile(
    r"(?:Placement\(|capture\(\.\.\., )(keep_whole|constants)=\[([^\]]*)\]\)"
)
_REPEATED: Final[Mapping[str, str]] = {"keep_whole": "--keep-whole", "constants": "--constant"}
"""Options to repeat for each name of a list."""
_OPTIONS: Final[Mapping[str, str]] = {
    "check=True": "--check",
    "(constants, check)": "(--constant, --check)",
    "constants needs": "--constant needs",
    "constants names": "--constant names",
    "recompute='layers'": "--recompute layers",
    "solver='chain'": "--solver chain",
    "schedule='gpipe'": "--schedule gpipe",
    "tied_weights='sum'": "--tied-weights sum",
    "device_map(..., tied='first')": "--tied-first",
    "engine='llama.cpp'": "--for llama.cpp",
    "chunks_per_device=1": "--chunks 1",
    "give more devices or chunks_per_device": "give more devices or --chunks",
    "(maxCPUs, with_host)": "(maxCPUs, without --no-host)",
    "leave schedule out, or give charging='relayed'": "leave --schedule out",
}
"""Command options for fields in messages of the library."""


def in_options(message: str) -> str:
    """Replace fields in a message of the library by options of the command line.

    Examples
    --------
    >>> in_options("h is divided; plan with Placement(keep_whole=['h.0', 'h.1'])")
    "h is divided; plan with --keep-whole 'h.0' --keep-whole 'h.1'"
    """

    def repeated(match: re.Match[str]) -> str:
        option = _REPEATED[match[1]]
        return f"{option} {match[2].replace(', ', f' {option} ')}"

    message = _NAMES.sub(repeated, message)
    for advice, option in _OPTIONS.items():
        message = message.replace(advice, option)
    return message


def explain_usage(error: Exception, message: str, program: str, words: Sequence[str]) -> str:
    """Return one sentence for a usage error of typer.

    It has the wrong value, or the commands that have the option, and a pointer to the help: that of
    `program` if the error has no command. `words` are the command line without the program.
    """
    context: Any = getattr(error, "ctx", None)
    # Errors of a missing option value have no context.
    command = [word for word in words[:1] if not word.startswith("-")]
    path = " ".join([program, *command]) if context is None else context.command_path
    text = message.strip().rstrip(".")
    if value := _VALUE.fullmatch(text):
        name, reason = value.groups()
        choices = _CHOICE.fullmatch(reason.replace("'", ""))
        wanted = f"; write one of {choices[1]}" if choices else f": {reason}"
        text = f"{name} is {_given(name, words)!r}{wanted}"
    elif context is not None and (unknown := _UNKNOWN.match(text)):
        others = _commands_with(context, unknown[1])
        if others:
            text = f"{context.command.name} has no option {unknown[1]}, which is one of {others}"
    return f"{text}; see: {path} --help"


def _given(name: str, words: Sequence[str]) -> str:
    """Return the last value written for an option."""
    given = ""
    for word, following in zip(words, (*words[1:], ""), strict=True):
        if word == name:
            given = following
        elif word.startswith(f"{name}="):
            given = word.removeprefix(f"{name}=")
    return given


def _commands_with(context: Any, option: str) -> str:
    commands: Mapping[str, Any] = getattr(context.find_root().command, "commands", {})
    having = [
        name
        for name, command in commands.items()
        if any(option in parameter.opts for parameter in command.params)
    ]
    return ", ".join(having)
