"""Groups of options: a frozen dataclass in the signature of a command stands for its fields."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def with_option_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command that takes the fields of each group in its signature as options.

    A group is a frozen dataclass whose fields are annotated as options or arguments of typer; the
    parameters of `command` that take groups are annotated by them. An instance as the parameter's
    default holds the defaults of the options; otherwise they are those of the fields.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Limits:
    ...     seed: int = 0
    >>> @with_option_groups
    ... def search(name: str, limits: Limits = Limits(seed=7)) -> None:
    ...     print(name, limits)
    >>> inspect.signature(search).parameters["seed"].default
    7
    >>> search(name="here", seed=3)
    here Limits(seed=3)
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for given in inspect.signature(command).parameters.values():
        kind = hints[given.name]
        if not dataclasses.is_dataclass(kind):
            parameters.append(given.replace(annotation=kind, kind=given.KEYWORD_ONLY))
            continue
        assert isinstance(kind, type)
        groups[given.name] = kind
        defaults = {each.name: each.default for each in dataclasses.fields(kind)}
        if given.default is not given.empty:
            defaults = {name: getattr(given.default, name) for name in defaults}
        for name, hint in get_type_hints(kind, include_extras=True).items():
            default = given.empty if defaults[name] is dataclasses.MISSING else defaults[name]
            parameters.append(
                inspect.Parameter(name, given.KEYWORD_ONLY, default=default, annotation=hint)
            )

    @functools.wraps(command)
    def call(**values: Any) -> Any:
        for name, kind in groups.items():
            values[name] = kind(**{e.name: values.pop(e.name) for e in dataclasses.fields(kind)})
        return command(**values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    return call
