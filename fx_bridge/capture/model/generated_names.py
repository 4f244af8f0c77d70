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

from torch import fx, nn
from torch.fx.graph import (
    CodeGen,
    PythonCode,
    _custom_builtins,
    _format_target,
    _illegal_names,
    _Namespace,
    _PyTreeCodeGen,
)

from fx_bridge.capture.model.attributes import is_reserved, own_attribute
from solver import PartitionError

_HELD: Final = "fxpartition_held_"
_READING: Final = ("get_attr", "call_module")
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
    if type(codegen) not in _KINDS or (apart and not any(map(_hidden_name, graph.nodes))):
        return
    codegen.__class__ = _KINDS[type(codegen)]
    graph.set_codegen(codegen)
    module.recompile()


class ModuleOfAnyNames(fx.GraphModule):
    """A module whose parts may have names of ``GraphModule`` attributes, such as ``graph``.

    The parts are in the tables of the module under their own names, where
    :func:`~fx_bridge.capture.model.attributes.attribute_at` finds them. Such a module cannot be
    pickled.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if is_reserved(name):
            # The attribute of the GraphModule, not the part of the model with this name.
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def get_submodule(self, target: str) -> nn.Module:
        """Return the part of the model at a dotted path."""
        if is_reserved(target):
            name, _, rest = target.partition(".")
            found = own_attribute(self, name)
            assert isinstance(found, nn.Module)
            return found.get_submodule(rest)
        return super().get_submodule(target)

    def __deepcopy__(self, memo: dict[int, Any]) -> fx.GraphModule:
        if not _hidden_parts(self):
            return super().__deepcopy__(memo)
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        graph = copy.deepcopy(self.graph)
        own = {key: value for key, value in self.__dict__.items() if key != "_graph"}
        made.__dict__.update(copy.deepcopy(own, memo))
        made.graph = graph
        return made

    def __reduce__(self) -> Any:
        if hidden := _hidden_parts(self):
            raise PartitionError(
                f"a module with a part called {hidden[0]!r} cannot be pickled, for a GraphModule "
                "has an attribute of this name; save the plan, and split again"
            )
        return super().__reduce__()


def _hidden_parts(module: nn.Module) -> list[str]:
    parts = (*module._modules, *module._parameters, *module._buffers)
    return [name for name in parts if is_reserved(name)]


def held_name(path: str) -> str:
    """Return the path under which a plain GraphModule can hold the attribute at `path`."""
    return f"{_HELD}{path}" if is_reserved(path) else path


def with_own_names(module: ModuleOfAnyNames) -> None:
    """Rename the parts of a module from :func:`held_name` back to their own names."""
    tables: tuple[Any, ...] = (module._modules, module._parameters, module._buffers)
    for table in tables:
        items = {name.removeprefix(_HELD): part for name, part in table.items()}
        table.clear()
        table.update(items)
    unsaved = module._non_persistent_buffers_set
    module._non_persistent_buffers_set = {name.removeprefix(_HELD) for name in unsaved}
    for node in module.graph.nodes:
        if node.op in _READING:
            node.target = str(node.target).removeprefix(_HELD)
    keep_names_apart(module)


def _hidden_name(node: fx.Node) -> str:
    """Return the name of the part of the model that a node reads, if a GraphModule hides it."""
    name = str(node.target).partition(".")[0] if node.op in _READING else ""
    return name if is_reserved(name) else ""


def _read_of_hidden(node: fx.Node) -> tuple[str, str]:
    """Return the generated expression that reads a part of the model, and its replacement."""
    target = str(node.target)
    name, _, rest = target.partition(".")
    if rest or node.op == "call_module":
        found = f"self._modules[{name!r}]"
    else:
        found = f"{{**self._parameters, **self._buffers}}[{name!r}]"
    return _format_target("self", target), _format_target(found, rest) if rest else found


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
        elif _hidden_name(node):
            at = body.index(f"# COUNTER: {number}\n") + 1
            body[at] = body[at].replace(*_read_of_hidden(node), 1)
    kept = [f"{other} = {name}\n" for name, other in hidden.items() if name in targets]
    back = [_IMPORTS.get(name, f"from builtins import {name}") + "\n" for name in hidden]
    return [*kept, *back, *body]
