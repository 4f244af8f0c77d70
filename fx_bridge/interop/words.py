"""Words of a program as written by hand: options, settings, and numbers of layers."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from fx_bridge.interop.literals import read_named
from fx_bridge.interop.stage_layers import LayerNames, StageLayers, is_host
from solver import PartitionError
from solver.model.quantities import check_digits, counted

Words = list[str] | dict[str, object]
"""The input of a program: arguments of a command line, or settings of a file."""
Write = Callable[[LayerNames, Sequence[StageLayers]], Words]
Read = Callable[[str, LayerNames, Sequence[str]], list[StageLayers]]
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_MOST_LETTERS: Final = 1 << 16
"""Length of words. The modules of a thousand layers have half as many letters."""
_MOST_LAYERS: Final = 100_000
"""More than any model has."""


def read_arguments(
    text: str,
    program: str,
    main: str,
    known: Mapping[str, str],
    *,
    flags: Collection[str] = (),
    lists: Collection[str] = (),
    ordered: Collection[str] = (),
    needs_main: bool = True,
) -> dict[str, str]:
    """Return the options and variables of a command line by name, in their order.

    A single word is the value of the option `main`, which is required if `needs_main`. `known` has
    the allowed names, each with its canonical one; of these, `flags` have no value, `lists` may be
    repeated, with their values joined by commas, but not after one of `ordered`. PartitionError if
    an option is unknown, has no value or two, or `main` is missing.
    """
    _check_length(text, program)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise PartitionError(
            f"{program}'s words {text[:100]!r}: {error}; close the quotation"
        ) from None
    words = _joined(words, has_expressions=bool(lists))
    if len(words) == 1 and "=" not in words[0] and words[0] not in known:
        return {main: words[0]}
    found: dict[str, str] = {}
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        name = name.removesuffix(":")  # of YAML
        name = name if name in known else name.upper()
        if name not in known:
            raise PartitionError(
                f"{program}'s words have {word[:100]!r}, which says nothing of layers; write only "
                f"{', '.join(dict.fromkeys(known.values()))}"
            )
        option = known[name]
        if option in found and option not in lists:
            raise PartitionError(f"{program}'s {option} is given twice; give it once")
        behind = [*found][[*found].index(option) + 1 :] if option in found else []
        between = next((name for name in behind if name in ordered), None)
        if between is not None:
            raise PartitionError(
                f"{program}'s {option} is given before {between} and after it; give it once, where "
                "all of it counts"
            )
        if option in flags:
            if equals:
                raise PartitionError(f"{program}'s {name} has no value; write it alone")
        elif not value and (not equals or words):
            if not words:
                raise PartitionError(f"{program}'s {name} has no value; write one behind it")
            value = words.pop(0)
        found[option] = ",".join(filter(None, (found.get(option), value)))
    if needs_main and main not in found:
        raise PartitionError(f"{program}'s words have no {main}; write it, or its value alone")
    return found


def _joined(words: Sequence[str], *, has_expressions: bool) -> list[str]:
    """Return words in which numbers and lists with blanks are one word each.

    With `has_expressions`, some values are regular expressions, where brackets and ``|`` do not
    group.
    """
    between = ",=" if has_expressions else ",=+*|"
    joined: list[str] = []
    for word in words:
        if word in ("export", "env", "-", "&&"):  # of shells, and of lists of YAML
            continue
        before = joined[-1] if joined else ""
        is_open = not has_expressions and any(
            before.count(left) > before.count(right) for left, right in ("[]", "()")
        )
        is_part = before.endswith(tuple(between)) or word.startswith(tuple(between))
        if before and (is_open or (is_part and not word.startswith("-"))):
            joined[-1] += word
        else:
            joined.append(word)
        if not has_expressions:
            joined[-1] = joined[-1].removesuffix(";")
    return joined


def read_settings(text: str, program: str, main: str, known: Collection[str]) -> dict[str, Any]:
    """Return settings by name, or `text` as the value of `main`."""
    _check_length(text, program)
    value: dict[str, Any] = read_named(text, main, f"{program}'s {main}")
    for name in value:
        if name != main and name not in known:
            raise PartitionError(
                f"{program}'s settings have {name!r}, which says nothing of layers; write only "
                f"{', '.join((main, *known))}"
            )
    if main not in value:
        raise PartitionError(f"{program}'s settings have no {main}; write it, or its value alone")
    return value


def _check_length(text: str, program: str) -> None:
    if len(text) > _MOST_LETTERS:
        raise PartitionError(
            f"{program}'s words have {len(text):,} letters; write at most {_MOST_LETTERS:,}"
        )


def read_number(text: object, what: str, least: int = 0) -> int:
    """Return a number of layers or stages; PartitionError, which begins with `what`, if none."""
    digits = str(text).strip()
    check_digits(digits, what)
    is_number = digits.removeprefix("-").isascii() and digits.removeprefix("-").isdecimal()
    if isinstance(text, bool) or not is_number or not least <= int(digits) <= _MOST_LAYERS:
        raise PartitionError(
            f"{what} is {str(text)[:100]!r}; write a whole number from {least} to {_MOST_LAYERS:,}"
        )
    return int(digits)


def check_size(size: object, stages: int, program: str, name: str) -> None:
    """Refuse a number of stages other than that of the words."""
    if size is not None and read_number(size, f"{program}'s {name}", 1) != stages:
        raise PartitionError(
            f"{program}'s {name} is {size} and there are {counted(stages, 'stage')}; write {stages}"
        )


def stages_of_counts(
    counts: Sequence[int], layers: int, devices: Sequence[str], program: str, chunks: int = 1
) -> list[StageLayers]:
    """Return stages with given numbers of layers, with the ends on the first and the last.

    `counts` is by stage, chunk by chunk. PartitionError if there are more stages than devices, or
    their sum is not `layers`.
    """
    size = len(counts) // chunks
    check_devices(size, devices, program)
    check_sum(counts, layers, program)
    for at, count in enumerate(counts):
        if count < 1:
            raise PartitionError(
                f"stage {at} of {program}'s {list(counts)} has no layer; write 1 or more, or fewer "
                "stages"
            )
    last = len(counts) - 1
    parts = [(count, at == 0, at == last) for at, count in enumerate(counts)]
    return placed_stages(parts, size, devices, program)


def placed_stages(
    parts: Sequence[tuple[int, bool, bool]], size: int, devices: Sequence[str], program: str
) -> list[StageLayers]:
    """Return stages on the first `size` devices, chunk by chunk.

    A part has the number of layers, and flags for a stage with the embedding and with the head.
    """
    if len(parts) % size:
        raise PartitionError(
            f"{program}'s words have {counted(len(parts), 'stage')} on "
            f"{counted(size, 'device')}; write as many stages for each"
        )
    check_devices(size, devices, program)
    return [StageLayers(devices[at % size], *part, at // size) for at, part in enumerate(parts)]


def check_devices(size: int, devices: Sequence[str], program: str) -> None:
    """Refuse more stages than devices."""
    if not 1 <= size <= len(devices):
        raise PartitionError(
            f"{program}'s words have {counted(size, 'stage')} and there are "
            f"{counted(len(devices), 'device')}; give as many"
        )


def check_sum(counts: Sequence[int], layers: int, program: str) -> None:
    """Refuse a number of layers other than the model's."""
    if sum(counts) != layers:
        raise PartitionError(
            f"{program}'s words have {counted(sum(counts), 'layer')} and the model has {layers}; "
            f"write numbers whose sum is {layers}"
        )


def without_host(devices: Sequence[str], program: str) -> list[str]:
    """Return the devices without the host; PartitionError if none is left."""
    found = [device for device in devices if not is_host(device)]
    if not found:
        raise PartitionError(f"{program} runs on GPUs, and there are none; add such as 24GB")
    return found


def cuda_numbers(devices: Sequence[str], program: str) -> list[str]:
    """Return the numbers of CUDA devices; PartitionError for any other device."""
    for device in devices:
        if not _is_cuda(device):
            raise PartitionError(
                f"{program} runs on CUDA devices by number, and the plan has {device!r}; plan for "
                "devices such as cuda:0 and cuda:1"
            )
    return [device.partition(":")[2] for device in devices]


def visible_devices(devices: Sequence[str], *, always: bool = False) -> str | None:
    """Return the ``CUDA_VISIBLE_DEVICES`` with which rank n runs on the n-th of some devices.

    It is None if a device has no CUDA number, and for the default order 0, 1, 2 and so on unless
    `always`. `devices` may repeat.
    """
    names = list(dict.fromkeys(devices))
    if not all(map(_is_cuda, names)):
        return None
    numbers = [name.partition(":")[2] for name in names]
    if numbers == [str(at) for at in range(len(numbers))] and not always:
        return None
    return ",".join(numbers)


def order_setting(stages: Sequence[StageLayers], *, always: bool = False) -> dict[str, object]:
    """Return `visible_devices` of stages as a setting, empty for None."""
    visible = visible_devices([stage.device for stage in stages], always=always)
    return {} if visible is None else {VISIBLE: visible}


def rank_devices(visible: object, devices: Sequence[str], program: str) -> list[str]:
    """Return the devices of ranks, in order.

    `visible` is the value of ``CUDA_VISIBLE_DEVICES``; None if the words have none. CUDA devices
    are then in the order of their numbers, others in the given order.
    """
    if visible is None:
        if all(map(_is_cuda, devices)):
            return sorted(devices, key=lambda name: int(name.partition(":")[2]))
        return list(devices)
    numbers = visible if isinstance(visible, list) else str(visible).split(",")
    names = [f"cuda:{str(number).strip()}" for number in numbers]
    return named_devices(names, devices, f"{program}'s {VISIBLE}")


def _is_cuda(device: str) -> bool:
    backend, _, number = device.partition(":")
    return backend == "cuda" and number.isascii() and number.isdecimal()


def named_devices(names: Sequence[str], devices: Sequence[str], what: str) -> list[str]:
    """Return devices that `what` names; PartitionError unless there is one each."""
    for name in names:
        if name not in devices:
            raise PartitionError(f"{what} names {name!r}; the devices are {', '.join(devices)}")
    if len(set(names)) < len(names):
        raise PartitionError(f"{what} names a device twice; name each once")
    return list(names)
