"""Lists and settings written by hand: in JSON, Python or YAML, or numbers with commas."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from typing import Any, Final

from solver import PartitionError
from solver.io.json_fields import parse_json

_MOST_ITEMS: Final = 100_000
"""Length of a list that is written as a product."""
_SETTING: Final = re.compile(r"([A-Za-z_]\w*)[ \t]*[:=](?!=)[ \t]*")
_BARE: Final = re.compile(r"[A-Za-z_][\w.]*")


def read_literal(text: str, what: str) -> Any:
    """Return the lists, strings and numbers of a text.

    Tuples become lists. ``["decoder"] * 3`` and ``decoder*3`` repeat an item three times. Strings
    need no quotes if the text has none at all. Lists of YAML may have one item a line. The message
    of the PartitionError for any other text begins with `what`.

    Examples
    --------
    >>> read_literal("[('embedding',), ['decoder'] * 2, ['loss']]", "words")
    [['embedding'], ['decoder', 'decoder'], ['loss']]
    >>> read_literal("- [a, b*2]", "words")
    [['a', ['b', 'b']]]
    """
    text = _dedented(text).removesuffix(",")
    if text.startswith("- "):
        return _block_list(text, what)
    try:
        return parse_json(text, what)
    except PartitionError as error:
        bare = not set("'\"") & set(text)
        try:
            tree = ast.parse(_BARE.sub(r'"\g<0>"', text) if bare else text, mode="eval")
            return _value(tree.body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            if "not valid JSON" not in str(error):
                raise error from None
            raise PartitionError(
                f"{what} is {text[:100]!r}, which is no list and no settings; write them as JSON"
            ) from None


def read_named(text: str, main: str, what: str) -> Any:
    """Return settings by name, or `text` as the value of `main`.

    Settings are an object of JSON or Python, or lines that begin with a name and ``:`` or ``=``.
    """
    text = text.strip()
    if text.startswith("{"):
        value = read_literal(text, what)
        return value if isinstance(value, dict) else {main: value}
    found: dict[str, Any] = {}
    for name, value in _settings(text):
        if name in found:
            raise PartitionError(f"{what}: {name!r} is there twice; give it once")
        found[name] = read_literal(_in_list(value), what)
    return found or {main: read_literal(_in_list(text), what)}


def _settings(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values of lines; a line without a name continues the previous one."""
    if not _SETTING.match(text):
        return
    name, lines = "", [""]
    for line in text.splitlines():
        begun = _SETTING.match(line)
        if begun:
            if name:
                yield name, "\n".join(lines)
            name, lines = begun[1], []
            line = line[begun.end() :]
        lines.append(line)
    yield name, "\n".join(lines)


def _in_list(text: str) -> str:
    """Return comma-separated numbers as a list, other text unchanged."""
    text = _dedented(text)
    if len(text) > 1 and text[0] in "'\"" and text.find(text[0], 1) == len(text) - 1:
        text = text[1:-1].strip()
    is_list = text.startswith(("[", "(", "{", "- ")) or "," not in text
    return text if is_list else f"[{text}]"


def _dedented(text: str) -> str:
    first = len(text) - len(text.lstrip())
    return textwrap.dedent(text[text.rfind("\n", 0, first) + 1 :]).strip()


def _block_list(text: str, what: str) -> list[Any]:
    """Return a list of YAML with one item a line; items may be such lists in turn."""
    root: list[Any] = []
    open_lists = [(-1, root)]
    for line in filter(str.strip, text.splitlines()):
        at = len(line) - len(line.lstrip())
        while line.startswith("- ", at):
            while open_lists[-1][0] > at:
                open_lists.pop()
            if open_lists[-1][0] < at:
                inner: list[Any] = []
                open_lists[-1][1].append(inner)
                open_lists.append((at, inner))
            at += 2
            at += len(line[at:]) - len(line[at:].lstrip())
        open_lists[-1][1].append(read_literal(line[at:], what))
    return root[0] if len(root) == 1 else root


def _value(node: ast.expr) -> Any:
    """Return the value of a Python expression of lists; ValueError for any other."""
    match node:
        case ast.Constant(value=str() | int() | float() as value):
            return value
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(part) for part in parts]
        case ast.Dict(keys=keys, values=values) if all(keys):
            pairs = [
                (_value(key), _value(value)) for key, value in zip(keys, values, strict=True) if key
            ]
            if len({str(key) for key, _ in pairs}) < len(pairs):
                raise ValueError
            return dict(pairs)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
            return -value
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _checked([*_items(left), *_items(right)])
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int() as times)):
            items = _value(left)
            items = items if isinstance(items, list) else [items]
            return _checked(items * min(times, _MOST_ITEMS // max(1, len(items)) + 1))
    raise ValueError


def _items(node: ast.expr) -> list[Any]:
    value = _value(node)
    if not isinstance(value, list):
        raise ValueError
    return value


def _checked(items: list[Any]) -> list[Any]:
    if len(items) > _MOST_ITEMS:
        raise ValueError
    return items
