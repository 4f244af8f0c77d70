"""Modules of each stage, as ``module_fqns_per_model_part`` of torchtitan and NeMo AutoModel.

NeMo's names are those of the captured model. torchtitan keeps children of the model, and elements
of their lists, by name; a stage of other names is silently empty. Its wrapper of models of
transformers has ``tok_embeddings``, ``layers.0``, ``norm``, ``lm_head`` and ``rotary_emb``. Both
have the rotary embedding on every stage. Compared with ``pipeline_parallel.py`` of torchtitan and
``pipelining/functional.py`` of NeMo AutoModel by ``benchmarks/engines.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fx_bridge.interop.stage_layers import LayerNames, StageLayers, check_stages
from fx_bridge.interop.words import (
    VISIBLE,
    Read,
    Words,
    Write,
    order_setting,
    placed_stages,
    rank_devices,
    read_settings,
)
from solver import PartitionError

_KEY: Final = "module_fqns_per_model_part"
_ROTARY: Final = "rotary_emb"
_EMBEDDING: Final = "embed_tokens"
_HEAD: Final = "lm_head"
_NORMS: Final = ("norm", "final_layernorm")
_OLDER: Final = {"output": _HEAD}
"""torchtitan's names of 2025 for those of 2026."""


def parts_of_modules(program: str, *, children_alone: bool) -> tuple[Write, Read]:
    """Return functions that write and read the modules of each stage.

    `children_alone` is True if the program names no modules inside others except by torchtitan's
    own names.
    """

    def ends_of(names: LayerNames) -> tuple[list[str], list[str], list[str]]:
        everywhere = [n for n in names.embedding if n.rpartition(".")[2] == _ROTARY]
        return [n for n in names.embedding if n not in everywhere], [*names.head], everywhere

    def write(names: LayerNames, stages: Sequence[StageLayers]) -> Words:
        check_stages(program, stages, has_chunks=True, bare_ends=True)
        names = _names_of_children(names, program) if children_alone else names
        embedding, head, everywhere = ends_of(names)
        parts, done = [], 0
        for stage in stages:
            part = embedding if stage.has_embedding else []
            part = [*part, *names.layers[done : done + stage.count]]
            parts.append([*part, *(head if stage.has_head else ()), *everywhere])
            done += stage.count
        # The number of stages of a device follows from the number of devices alone.
        return {_KEY: parts, **order_setting(stages, always=stages[-1].chunk > 0)}

    def read(text: str, names: LayerNames, devices: Sequence[str]) -> list[StageLayers]:
        found = read_settings(text, program, _KEY, [VISIBLE])
        devices = rank_devices(found.get(VISIBLE), devices, program)
        parts = _lists(found[_KEY], program)
        if children_alone and (own_names := _names_of_children(names, program)) != names:
            names = own_names
            parts = [[_OLDER.get(name, name) for name in part] for part in parts]
        embedding, head, everywhere = ends_of(names)
        own = [[name for name in part if name not in everywhere] for part in parts]
        listed = [name for part in own for name in part]
        expected = [*embedding, *names.layers, *head]
        for at, name in enumerate(expected):
            there = listed[at] if at < len(listed) else "nothing"
            if there != name:
                raise PartitionError(
                    f"{program}'s {_KEY} has {there!r} where {name!r} runs; write the modules in "
                    f"the order {', '.join(expected[max(0, at - 1) : at + 2])}"
                )
        if len(listed) > len(expected):
            raise PartitionError(
                f"{program}'s {_KEY} has {listed[len(expected)]!r} behind {expected[-1]!r}, which "
                "is the last; leave it out"
            )
        return _stages(own, names, (embedding, head), devices, program)

    return write, read


def _names_of_children(names: LayerNames, program: str) -> LayerNames:
    """Return torchtitan's names of the modules of a model of transformers, or `names` of another.

    These are the modules that its wrapper of such models finds; it keeps nothing of any other.
    """
    every = (*names.embedding, *names.head, *(layer.rpartition(".")[0] for layer in names.layers))
    if not any("." in name for name in every) and _EMBEDDING not in names.embedding:
        return names
    embedding = [name for name in names.embedding if name != f"model.{_ROTARY}"]
    layers = [f"layers.{at}" for at in range(len(names.layers))]
    if (
        embedding != [f"model.{_EMBEDDING}"]
        or [*names.layers] != [f"model.{layer}" for layer in layers]
        or names.head not in [(f"model.{norm}", _HEAD) for norm in _NORMS]
    ):
        raise PartitionError(
            f"{program} finds model.{_EMBEDDING}, model.layers, model.norm and {_HEAD} of a model "
            f"of transformers, and this one has {', '.join((*names.embedding, '...', *names.head))}"
            "; hand it over as a split specification"
        )
    return LayerNames(tuple(layers), ("tok_embeddings", _ROTARY), ("norm", _HEAD))


def _stages(
    parts: Sequence[Sequence[str]],
    names: LayerNames,
    ends: tuple[Sequence[str], Sequence[str]],
    devices: Sequence[str],
    program: str,
) -> list[StageLayers]:
    for names_of_end in ends:
        where = [at for at, part in enumerate(parts) if set(part) & set(names_of_end)]
        if len(where) > 1:
            raise PartitionError(
                f"{program}'s stages {where[0]} and {where[1]} share {', '.join(names_of_end)}; "
                "write them into one"
            )
    layers, last = set(names.layers), len(parts) - 1
    counts = [len(layers.intersection(part)) for part in parts]
    stages = [(count, at == 0, at == last) for at, count in enumerate(counts)]
    return placed_stages(stages, min(len(parts), len(devices)), devices, program)


def _lists(value: object, program: str) -> list[list[str]]:
    is_list = isinstance(value, list) and value and all(isinstance(part, list) for part in value)
    if not is_list or not all(isinstance(name, str) for part in value for name in part):  # type: ignore[attr-defined]
        raise PartitionError(
            f"{program}'s {_KEY} is no list of lists of names; write such as "
            '[["embed", "layers.0"], ["layers.1", "norm", "head"]]'
        )
    for at, part in enumerate(value):  # type: ignore[arg-type, var-annotated]
        if not part:
            raise PartitionError(f"{program}'s stage {at} has no module; write one or leave it out")
    return value  # type: ignore[return-value]
