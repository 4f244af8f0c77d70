"""Display of foreign text in messages and tables: printable, short, on one line."""

from __future__ import annotations

import re
from typing import Final

_MOST_SHOWN: Final = 100
"""Most characters of one foreign text."""
_MOST_MESSAGE: Final = 2000
"""Most characters of a whole message."""
_QUOTED: Final = re.compile(r"""(?<![\w\\])(["'])(?:\\.|(?!\1)[^\\])+\1(?!\w)""", re.DOTALL)
_LONG_WORD: Final = re.compile(rf"\S{{{_MOST_SHOWN + 1},}}")


def printable(text: str) -> str:
    """Return `text` with escapes for characters that a terminal does not display as they are.

    Control characters, line breaks, characters that reverse the reading direction, and
    undecodable bytes become escapes of letters and digits.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def shortened(text: object, most: int = _MOST_SHOWN) -> str:
    """Return a text, such as a path, in at most `most` characters, with its middle cut out.

    Examples
    --------
    >>> shortened("abcdefghijklmnop", 11)
    'abcd...mnop'
    """
    text = str(text)
    kept = (most - 3) // 2
    return text if len(text) <= most else f"{text[:kept]}...{text[-kept:]}"


def shown(value: object) -> str:
    """Return the repr of any given object, for a message.

    Examples
    --------
    >>> shown("gpu"), len(shown([0] * 1000)), shown(10**5000)
    ("'gpu'", 99, 'an int that cannot be shown')
    """
    try:
        return shortened(printable(repr(value)))
    except Exception:  # of any class, and of numbers with thousands of digits
        name = type(value).__name__
        return f"{'an' if name[0] in 'aeiou' else 'a'} {name} that cannot be shown"


def one_line(message: str) -> str:
    """Return a message as one printable line; long words and quoted texts lose their middle.

    Examples
    --------
    >>> len(one_line(f"there is no file {'x' * 5000}; write another"))
    130
    """
    lines = (line.strip() for line in message.splitlines())
    line = shortened(" ".join(filter(None, lines)), 20 * _MOST_MESSAGE)
    line = _QUOTED.sub(lambda match: shortened(match[0]), printable(line))
    return shortened(_LONG_WORD.sub(lambda match: shortened(match[0]), line), _MOST_MESSAGE)
