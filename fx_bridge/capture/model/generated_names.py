"""Keep the arguments of a generated function apart from all other names in its code.

torch generates code in which the arguments of a model keep their names, beside
``device(type='cpu')``, ``torch``, ``inf``, ``slice`` and other names of a graph. An argument called
``device`` would hide the function.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from torch import fx
from torch.fx.graph import (
    CodeGen,
    PythonCode,
    _custom_builtins,
    _illegal_names,
    _Namespace,
    _PyTreeCodeGen,
)

_FLATTEN: Final = "fx_pytree"
_IMPORTS: Final = {
    **{name: builtin.import_str for name, builtin in _custom_builtins.items()},
    "NoneType": "from types import NoneType",
}


def keep_names_apart(module: fx.GraphModule) -> None:
    """Make the generated code of a module, and of others with its signature, free of clashes.

    Examples
    --------
    >>> import torch
    >>> graph = fx.Graph()
    >>> x, name = graph.placeholder("x"), graph.placeholder("device")
    >>> made = graph.call_method("to", (x, torch.device("cpu")))
    >>> _ = graph.output((made, name))
    >>> module = fx.GraphModule(torch.nn.Module(), graph)
    >>> keep_names_apart(module)
    >>> module(torch.ones(1), device="cpu")
    (tensor([1.]), 'cpu')
    """
    graph = module.graph
    codegen = copy.copy(graph._codegen)
    inputs = {node.name for node in graph.find_nodes(op="placeholder")}
    apart = inputs.issuperset(_arguments(codegen, graph.nodes))
    if type(codegen) not in _KINDS or apart:
        return
    codegen.__class__ = _KINDS[type(codegen)]
    graph.set_codegen(codegen)
    module.recompile()


def _arguments(codegen: CodeGen, nodes: Any) -> list[str]:
    info = getattr(codegen, "pytree_info", None)
    targets = [str(n.target).lstrip("*") for n in nodes if n.op == "placeholder"]
    return [*(info.orig_args if info is not None else ()), *targets]


class _Apart(CodeGen):
    """Generates code that copies its arguments to other names, then restores the hidden ones."""

    _flatten = _FLATTEN

    def _gen_python_code(
        self, nodes: Any, root_module: str, namespace: _Namespace, **options: Any
    ) -> PythonCode:
        nodes = list(nodes)
        arguments = dict.fromkeys(_arguments(self, nodes))
        inputs = {node.name for node in nodes if node.op == "placeholder"}
        namespace._used_names.update(arguments.keys() - inputs - _illegal_names.keys())
        hidden = {
            name: namespace.create_name(f"{name}_argument", None)
            for name in arguments
            if name in _illegal_names
        }
        self._flatten = namespace.create_name("flatten", None) if _FLATTEN in hidden else _FLATTEN
        around: Callable[[list[str]], list[str]] | None = self._body_transformer

        def transformed(body: list[str]) -> list[str]:
            body = _with_names_back(body, nodes, hidden)
            return around(body) if around is not None else body

        self._body_transformer = transformed
        try:
            return super()._gen_python_code(nodes, root_module, namespace, **options)
        finally:
            self._body_transformer = around


class _ApartInTrees(_Apart, _PyTreeCodeGen):
    def gen_var_bindings(self, *args: Any, **kwargs: Any) -> str:
        bindings = super().gen_var_bindings(*args, **kwargs)
        if self._flatten == _FLATTEN:
            return bindings
        found = f"\n    import torch.fx._pytree as {self._flatten}"
        return found + bindings.replace(f"{_FLATTEN}.tree_fl", f"{self._flatten}.tree_fl", 1)


_KINDS: Final[dict[type[Any], type[Any]]] = {CodeGen: _Apart, _PyTreeCodeGen: _ApartInTrees}


def _is_named(name: str, body: Sequence[str]) -> bool:
    """Return True if a line uses `name` other than to take an argument."""
    taken = re.compile(rf"\w+ = {re.escape(name)}\n")
    named = re.compile(rf"(?<![\w.]){re.escape(name)}(?!\w)")
    return any(named.search(line) and not taken.fullmatch(line) for line in body)


def _with_names_back(
    body: list[str], nodes: Sequence[fx.Node], hidden: dict[str, str]
) -> list[str]:
    """Return generated lines after copies of the arguments and imports of the hidden names."""
    body = list(body)
    targets = {str(n.target).lstrip("*") for n in nodes if n.op == "placeholder"}
    # Generated code does not use most builtins, such as input.
    hidden = {name: other for name, other in hidden.items() if _is_named(name, body)}
    for number, node in enumerate(nodes):
        name = str(node.target).lstrip("*")
        if node.op == "placeholder" and name in hidden:
            at = body.index(f"# COUNTER: {number}\n") + 1
            body[at] = body[at].replace(f" = {name}\n", f" = {hidden[name]}\n")
    kept = [f"{other} = {name}\n" for name, other in hidden.items() if name in targets]
    back = [_IMPORTS.get(name, f"from builtins import {name}") + "\n" for name in hidden]
    return [*kept, *back, *body]
