"""Groups of options: a frozen dataclass in the signature of a command stands for its fields."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from typer.models import OptionInfo


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes the fields of each group in its signature as options.

    Parameters
    ----------
    command : callable
        Some of its parameters are annotated with a group: a frozen dataclass whose fields are
        annotated as options of typer, each with a default, or are groups themselves, and whose
        ``PANEL`` is the heading under which a command's help lists its own options. The default
        of such a parameter, a group itself, holds the defaults of its options; without one they
        are those of the fields.

    Returns
    -------
    callable
        With a signature that typer can read, in the order of the parameters and fields. It makes
        the groups and calls `command`.

    Raises
    ------
    TypeError
        If two parameters would have the same name.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True)
    ... class Limits:
    ...     PANEL = "Search"
    ...     seed: Annotated[int, OptionInfo(param_decls=("--seed",))] = 0
    >>> @with_option_groups
    ... def search(name: str, limits: Limits = Limits(seed=7)) -> None:
    ...     print(name, limits)
    >>> search(name="here")
    here Limits(seed=7)
    >>> search(name="here", seed=3)
    here Limits(seed=3)
    """
    hints = get_type_hints(command, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for given in inspect.signature(command).parameters.values():
        kind = hints[given.name]
        if dataclasses.is_dataclass(kind):
            groups[given.name] = kind  # type: ignore[assignment]
            defaults = kind() if given.default is given.empty else given.default  # type: ignore[operator]
            parameters += _parameters_of(kind, defaults)  # type: ignore[arg-type]
        else:
            parameters.append(given.replace(annotation=kind, kind=given.KEYWORD_ONLY))
    names = [parameter.name for parameter in parameters]
    if len(set(names)) < len(names):
        raise TypeError(f"{command.__name__} has an option twice: {', '.join(names)}")
    signature = inspect.Signature(parameters)

    @functools.wraps(command)
    def call(**values: Any) -> None:
        bound = signature.bind(**values)
        bound.apply_defaults()
        left = dict(bound.arguments)
        made = {name: _made(group, left) for name, group in groups.items()}
        command(**left, **made)

    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    return call


def _made(group: type[Any], left: dict[str, Any]) -> Any:
    """Return a group of the values of its options, which leave `left`."""
    hints: Final = get_type_hints(group)
    values = {
        field.name: _made(hints[field.name], left)
        if dataclasses.is_dataclass(hints[field.name])
        else left.pop(field.name)
        for field in dataclasses.fields(group)
    }
    return group(**values)


def _parameters_of(group: type[Any], defaults: object) -> list[inspect.Parameter]:
    hints: Final = get_type_hints(group, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for field in dataclasses.fields(group):
        hint, default = hints[field.name], getattr(defaults, field.name)
        if dataclasses.is_dataclass(hint):
            parameters += _parameters_of(hint, default)  # type: ignore[arg-type]
            continue
        parameters.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=_in_panel(hint, group.PANEL),
            )
        )
    return parameters


def _in_panel(hint: Any, panel: str) -> Any:
    """Return the annotation of an option that its command's help lists under `panel`."""
    assert get_origin(hint) is Annotated, hint
    kind, *notes = get_args(hint)
    listed: list[Any] = []
    for note in notes:
        if isinstance(note, OptionInfo):
            # The same option may stand in another panel of another command.
            option = copy.copy(note)
            option.rich_help_panel = option.rich_help_panel or panel
            listed.append(option)
        else:
            listed.append(note)
    return Annotated[(kind, *listed)]
