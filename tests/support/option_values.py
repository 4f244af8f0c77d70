"""Options of a command by their names alone, as a person writes them."""

from dataclasses import fields, is_dataclass
from typing import get_type_hints

from experiments.commands.options import ProblemOptions


def problem_options(**values):
    """The options of a problem, each in its group; TypeError for one that there is not."""
    made = _group(ProblemOptions, values)
    if values:
        raise TypeError(f"no options: {', '.join(values)}")
    return made


def option_names(group):
    """The names of all options in a group and in the groups in it."""
    hints = get_type_hints(group)
    for field in fields(group):
        hint = hints[field.name]
        yield from option_names(hint) if is_dataclass(hint) else [field.name]


def _group(group, values):
    hints = get_type_hints(group)
    given = {}
    for field in fields(group):
        if is_dataclass(hints[field.name]):
            given[field.name] = _group(hints[field.name], values)
        elif field.name in values:
            given[field.name] = values.pop(field.name)
    return group(**given)
