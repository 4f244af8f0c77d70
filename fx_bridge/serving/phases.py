"""Graphs of one step for several numbers of tokens, with the same names for the same operators."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import torch
from torch import fx
from torch.fx.graph import _Namespace

from fx_bridge.capture.graph import CapturedGraph, capture
from fx_bridge.capture.modules import module_calls
from fx_bridge.costs.operators import operation_name
from fx_bridge.serving.step import ServeStep
from solver import PartitionError
from solver.model.checks import check_positive

_RESET: Final = torch.ops.aten.mul_.Tensor
_WRITE: Final = torch.ops.aten.copy_.default


def capture_phases(step: ServeStep, tokens: Sequence[int]) -> dict[int, CapturedGraph]:
    """Capture a step for every number of tokens that it is called with.

    Parameters
    ----------
    step : ServeStep
        Made by :func:`fx_bridge.serving.step.serve_step`.
    tokens : sequence of int
        Such as ``(512, 1)``: parts of a prompt, and one token at a time.

    Returns
    -------
    dict of int to CapturedGraph
        By the number of tokens. Operators of the first graph have the names that they have in any
        capture. Those of the others have the names of the operators of the first that do the same
        in the same call of a module, and names of their own where there is none: of one token,
        attention needs other operators than of several.

    Raises
    ------
    PartitionError
        If a number is no positive integer or more than a call of the step has, or the step cannot
        be captured.

    Examples
    --------
    >>> import transformers
    >>> from fx_bridge.serving import serve_step
    >>> config = transformers.GPT2Config(vocab_size=32, n_embd=8, n_layer=2, n_head=2)
    >>> step = serve_step(transformers.GPT2LMHeadModel(config), batch=1, context=16)
    >>> prompt, token = capture_phases(step, (8, 1)).values()
    >>> [node.name for node in prompt.operators] == [node.name for node in token.operators]
    True
    """
    found: dict[int, CapturedGraph] = {}
    for count in dict.fromkeys(tokens):
        check_positive(count, "tokens")
        if count > step.chunk:
            raise PartitionError(
                f"tokens is {count}, but a call has at most {step.chunk}; write at most that, or "
                "serve_step(..., context=..., chunk=...) with more"
            )
        captured = capture(step, step.example(count))
        if found:
            _rename(captured, _names_in(next(iter(found.values())), captured))
        found[count] = captured
    if not found:
        raise PartitionError("tokens is empty; write for example (512, 1)")
    return found


def check_prompt(graphs: Mapping[int, CapturedGraph], calls: Mapping[int, int]) -> None:
    """Refuse a prompt in parts where a call of several tokens forgets what came before.

    Some recurrent layers of transformers read their state in calls of one token alone.

    Parameters
    ----------
    graphs : mapping of int to CapturedGraph
        By the number of tokens.
    calls : mapping of int to int
        How often each is called for a prompt.

    Raises
    ------
    PartitionError
        If so.
    """
    parts = {tokens: count for tokens, count in calls.items() if tokens > 1}
    if sum(parts.values()) < 2:
        return
    for tokens, state in forgotten_states(graphs).items():
        if tokens in parts:
            raise forgets(tokens, state)


def forgets(tokens: int, state: str) -> PartitionError:
    """Return the error that says so of a call of some tokens behind others."""
    return PartitionError(
        f"a call of {tokens} tokens does not read {state!r}, so that it forgets what came before; "
        "give the prompt in one call: leave chunk out"
    )


def forgotten_states(graphs: Mapping[int, CapturedGraph]) -> dict[int, str]:
    """Return a state that a graph writes and does not read, by the tokens of such graphs."""
    found = {tokens: next(_forgotten(captured), None) for tokens, captured in graphs.items()}
    return {tokens: state for tokens, state in found.items() if state is not None}


def _forgotten(captured: CapturedGraph) -> Iterator[str]:
    """Yield the states that a graph writes and does not read."""
    for node in captured.graph.find_nodes(op="get_attr"):
        if ".recurrent_states_" in str(node.target):
            resets = [user for user in node.users if user.target is _RESET]
            readers = [reader for user in (node, *resets) for reader in user.users]
            if all(reader in resets or reader.target is _WRITE for reader in readers):
                yield str(node.target)


def same_operators(first: CapturedGraph, other: CapturedGraph) -> dict[str, str]:
    """Return, by operators of `other`, those of `first` that do the same in the same call."""
    ours, theirs = list(_acts(first)), list(_acts(other))
    matcher = difflib.SequenceMatcher(None, ours, theirs, autojunk=False)
    own = [node.name for node in first.operators]
    its = [node.name for node in other.operators]
    return {
        its[block.b + offset]: own[block.a + offset]
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    }


def _names_in(first: CapturedGraph, other: CapturedGraph) -> dict[str, str]:
    """Return what the operators of `other` are called in `first`, or a name that it has not."""
    taken = {node.name for node in first.graph.nodes}
    names = same_operators(first, other)
    for name in (node.name for node in other.operators):
        if name not in names:
            free = name
            while free in taken:
                free += "_alone"
            taken.add(free)
            names[name] = free
    return names


def _acts(captured: CapturedGraph) -> Iterator[tuple[object, ...]]:
    """Yield what every operator does and in which calls of modules."""
    calls = module_calls(captured)
    for node in captured.operators:
        yield calls[node.name], operation_name(node)


def _rename(captured: CapturedGraph, names: Mapping[str, str]) -> None:
    """Give operators other names, and keep the names of all other nodes."""
    graph: fx.Graph = captured.graph
    namespace = _Namespace()
    for node in graph.nodes:
        node.name = names.get(node.name, node.name)
        namespace._used_names.add(node.name)
        namespace.associate_name_with_obj(node.name, node)
    graph._graph_namespace = namespace
    captured.module.recompile()
