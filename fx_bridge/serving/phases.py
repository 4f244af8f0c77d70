"""Graphs of one step for several numbers of tokens, with matching operator names."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import fx
from torch.fx.graph import _Namespace

from fx_bridge.capture.graph import CapturedGraph, capture
from fx_bridge.costs.operators import operation_name
from fx_bridge.serving.step import ServeStep
from solver import PartitionError
from solver.model.checks import check_positive

_RESET: Final = torch.ops.aten.mul_.Tensor
_WRITE: Final = torch.ops.aten.copy_.default


def capture_phases(step: ServeStep, tokens: Sequence[int]) -> dict[int, CapturedGraph]:
    """Capture a step for several numbers of tokens per call.

    Parameters
    ----------
    step : ServeStep
        A result of :func:`fx_bridge.serving.step.serve_step`.
    tokens : sequence of int
        Tokens per call, such as ``(512, 1)`` for chunks of a prompt and single tokens.

    Returns
    -------
    dict of int to CapturedGraph
        Graphs by the number of tokens. The first graph keeps the names of its capture. In the
        others, an operator has the name of the first graph's operator that does the same in the
        same module call, or a new name if there is none: attention over one token runs other
        operators than over several.

    Raises
    ------
    PartitionError
        If a number is not a positive integer or exceeds the step's chunk, or the step cannot be
        captured.

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
            captured = _renamed(captured, _names_in(next(iter(found.values())), captured))
        found[count] = captured
    if not found:
        raise PartitionError("tokens is empty; write for example (512, 1)")
    return found


def check_prompt(graphs: Mapping[int, CapturedGraph], calls: Mapping[int, int]) -> None:
    """Refuse a prompt in chunks if calls of several tokens ignore the state before them.

    Some recurrent layers of transformers read their state only in calls of one token. `calls` has
    the number of calls of each graph for a prompt.
    """
    parts = {tokens: count for tokens, count in calls.items() if tokens > 1}
    if sum(parts.values()) < 2:
        return
    for tokens, state in forgotten_states(graphs).items():
        if tokens in parts:
            raise forgets(tokens, state)


def forgets(tokens: int, state: str) -> PartitionError:
    """Return the error for a call of several tokens that ignores a state before it."""
    return PartitionError(
        f"a call of {tokens} tokens does not read {state!r}, so that it forgets what came before; "
        "give the prompt in one call: leave chunk out"
    )


def forgotten_states(graphs: Mapping[int, CapturedGraph]) -> dict[int, str]:
    """Return a state that a graph writes without reading, by the tokens of such graphs."""
    found = {tokens: next(_forgotten(captured), None) for tokens, captured in graphs.items()}
    return {tokens: state for tokens, state in found.items() if state is not None}


def _forgotten(captured: CapturedGraph) -> Iterator[str]:
    """Yield the states that a graph writes without reading."""
    for node in captured.graph.find_nodes(op="get_attr"):
        if ".recurrent_states_" in str(node.target):
            resets = [user for user in node.users if user.target is _RESET]
            readers = [reader for user in (node, *resets) for reader in user.users]
            if all(reader in resets or reader.target is _WRITE for reader in readers):
                yield str(node.target)


def same_operators(first: CapturedGraph, other: CapturedGraph) -> dict[str, str]:
    """Map operators of `other` to those of `first` that do the same in the same module call."""
    ours, theirs = list(_operations(first)), list(_operations(other))
    matcher = difflib.SequenceMatcher(None, ours, theirs, autojunk=False)
    own = [node.name for node in first.operators]
    its = [node.name for node in other.operators]
    return {
        its[block.b + offset]: own[block.a + offset]
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    }


def _names_in(first: CapturedGraph, other: CapturedGraph) -> dict[str, str]:
    """Map operators of `other` to their names in `first`, or to new names."""
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


def _operations(captured: CapturedGraph) -> Iterator[tuple[object, ...]]:
    """Yield the module calls and the operation of every operator, for comparison."""
    calls = captured.modules.calls
    for node in captured.operators:
        yield calls[node.name], operation_name(node)


def _renamed(captured: CapturedGraph, names: Mapping[str, str]) -> CapturedGraph:
    """Return a graph with other names of operators, and those of all other nodes."""
    graph: fx.Graph = captured.graph
    namespace = _Namespace()
    for node in graph.nodes:
        node.name = names.get(node.name, node.name)
        namespace._used_names.add(node.name)
        namespace.associate_name_with_obj(node.name, node)
    graph._graph_namespace = namespace
    captured.module.recompile()
    # Its modules and operators were found under the former names.
    return replace(captured)
