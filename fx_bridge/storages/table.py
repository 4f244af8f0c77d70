"""The storage of every value: views, in-place writes, tied and viewed weights.

Found by replaying the graph on fake tensors (:mod:`fx_bridge.storages.replay`) and comparing
storages. That also covers cases outside of any schema: whether a reshape, a cast or ``contiguous``
copied.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import fx, nn
from torch._ops import OpOverload

from fx_bridge.storages.device_kernels import DeviceKernels
from fx_bridge.storages.kinds import Kinds, KindsFound
from fx_bridge.storages.mutations import WriteRecorder, memory_of, written_arguments
from fx_bridge.storages.replay import Replay, value_bytes
from fx_bridge.storages.tensor_subclasses import tensors_in
from fx_bridge.storages.weights import WeightStorage, is_flat, weight_storages
from solver.model.checks import only_given


@dataclass(frozen=True, slots=True)
class Storage:
    """One allocation."""

    kind: Literal["weight", "input", "operator", "internal", "number"]
    """Class of its owner; ``internal`` is made by an operator only for its backward pass,
    ``number`` is a Python number that autograd saves as a tensor."""
    owner: str  # key of the weight, or name of the placeholder or operator
    index: int  # number among the owner's storages; a tuple-valued operator can have several
    size_bytes: int  # of the whole allocation, even if a value reads little of it

    @property
    def key(self) -> str:
        """A name that is unique among the storages that are not weights."""
        suffix = f".{self.index}" if self.index else ""
        marker = {"internal": ".saved", "number": ".number"}.get(self.kind, "")
        return f"{self.owner}{marker}{suffix}"


@dataclass(frozen=True, slots=True, eq=False)
class StorageTable:
    """Storages of a captured graph, by node name."""

    storages: Mapping[str, tuple[Storage, ...]]
    """Storages of the value of each placeholder, ``get_attr`` and operator; several for a tuple,
    none for a value that is not a tensor."""
    writes: Mapping[str, tuple[Storage, ...]]
    """Storages that each operator changes in place; operators without are left out."""
    weights: Mapping[str, WeightStorage]
    """By key; parameters and buffers that no operator reads are left out."""
    weights_read: Mapping[str, tuple[str, ...]]
    """Keys of the weights that each operator reads by itself, or whose storage its value is in;
    operators without are left out."""
    value_bytes: Mapping[str, int]  # numel x itemsize of each value, symbolic sizes by their hints
    made_up: tuple[str, ...] = ()
    """Operators that do not run on fake tensors, for example because a size depends on data. Their
    storages follow the captured sizes and the schema; their FLOPs are unknown."""
    saved: Mapping[str, tuple[Storage, ...]] = field(default_factory=dict)
    """Storages that autograd keeps for the backward pass of each operator, if the graph trains.
    Weights are left out; they are held anyway. Storages of no value of the graph, such as a dropout
    mask, have kind ``"internal"``."""
    kinds: Kinds = field(default_factory=lambda: Kinds({}, None))  # operators with identical costs
    __repr__ = only_given

    @property
    def keys_by_name(self) -> dict[str, list[str]]:
        """Keys of the weights that contain each parameter, buffer or constant, by its name."""
        keys: dict[str, list[str]] = {}
        for key, weight in self.weights.items():
            for name in weight.names:
                keys.setdefault(name, []).append(key)
        return keys

    def allocated(self, name: str) -> tuple[Storage, ...]:
        """Return the storages of the value of operator `name` that it allocates itself."""
        return tuple(s for s in self.storages[name] if s.kind == "operator" and s.owner == name)

    def alias_of(self, node: fx.Node) -> str | None:
        """Return the operand of `node` in whose storage the whole value of `node` is, if any."""
        own = self.allocated(node.name)
        others = {s for s in self.storages[node.name] if s not in own and s.kind != "weight"}
        if own or len(others) != 1:
            return None
        # The last such operand: after an in-place write it is the written value.
        reads = (read.name for read in reversed(node.all_input_nodes) if read.op != "get_attr")
        return next((read for read in reads if others & set(self.storages[read])), None)

    def touched(self, node: fx.Node) -> tuple[Storage, ...]:
        """Return every storage that `node` reads, writes or returns, each once."""
        names = [read.name for read in node.all_input_nodes] + [node.name]
        found = [storage for name in names for storage in self.storages.get(name, ())]
        return tuple(dict.fromkeys(found + list(self.writes.get(node.name, ()))))


def storage_table(
    module: fx.GraphModule,
    kernels: DeviceKernels,
    examples: tuple[Any, ...],
    given_bytes: Mapping[str, int],
    *,
    trains: bool,
) -> StorageTable:
    """Find the storages of every value of a graph, which is differentiated if it `trains`.

    `examples` are the values of its placeholders in the example call, if known, and `given_bytes`
    the bytes of weights that are stored otherwise, by name.

    One pass over the graph without memory for tensors, about 0.1 ms a node. Autograd itself reports
    saved values, through saved-tensor hooks, so views that keep their base alive and kernels' own
    residuals count. Python numbers, as in ``x * 0.5``, are tensors of 8 bytes that no hook reports;
    they are read from autograd's graph.
    """
    replay = _SavedReplay if trains else _StorageReplay
    watch = replay(module, kernels, examples, given_bytes)
    watch.kinds_found = kinds = KindsFound()
    watch.replay()
    read = {key for keys in watch.weights_read.values() for key in keys}
    return StorageTable(
        storages=MappingProxyType(watch.storages),
        writes=MappingProxyType(watch.writes),
        weights=MappingProxyType({k: w for k, w in watch.weights.items() if k in read}),
        weights_read=MappingProxyType(watch.weights_read),
        value_bytes=MappingProxyType(watch.bytes_of),
        made_up=tuple(watch.made_up),
        saved=MappingProxyType(watch.saved),
        kinds=kinds.kinds,
    )


class _StorageReplay(Replay):
    def __init__(
        self,
        module: fx.GraphModule,
        kernels: DeviceKernels,
        examples: tuple[Any, ...],
        given_bytes: Mapping[str, int],
    ) -> None:
        super().__init__(module, kernels=kernels)
        self.recorder = WriteRecorder()
        self.modes = (self.recorder,)
        self.owner: dict[object, Storage] = {}
        self.storages: dict[str, tuple[Storage, ...]] = {}
        self.writes: dict[str, tuple[Storage, ...]] = {}
        self.weights_read: dict[str, tuple[str, ...]] = {}
        self.bytes_of: dict[str, int] = {}
        self.saved: dict[str, tuple[Storage, ...]] = {}
        self.given_bytes = given_bytes
        self.weights = weight_storages(self.module, self.graph, self.given_bytes)
        self.keys_of: dict[int, tuple[str, ...]] = {}
        for key, weight in self.weights.items():
            storage = Storage("weight", key, 0, weight.size_bytes)
            for tensor in weight.tensors:
                self.keys_of[id(tensor)] = (*self.keys_of.get(id(tensor), ()), key)
                # Called submodules use the tensor itself, the graph its fake.
                for part, fake in self.fake_parts(tensor):
                    if memory_of(part) in weight.memory_bytes:
                        self.owner[memory_of(part)] = self.owner[memory_of(fake)] = storage
        self.input_of: dict[object, Storage] = {}
        placeholders = self.graph.find_nodes(op="placeholder")
        self.examples = dict(zip(placeholders, examples, strict=False))

    def observe(self, node: fx.Node) -> Any:
        self.recorder.written.clear()
        value = super().observe(node)
        # Function modes need not see these reads.
        with torch._C.DisableTorchFunction():
            self._note(node, value)
        return value

    def _note(self, node: fx.Node, value: Any) -> None:
        example = self.examples.get(node)
        memories = [memory_of(part) for part in tensors_in(example)]
        parts = [*zip(memories, tensors_in(value) if memories else (), strict=False)]
        for memory, part in parts:
            if memory in self.input_of:
                # Two inputs in one storage, such as a tensor and its view.
                self.owner[memory_of(part)] = self.input_of[memory]
        written = [self.owner[a] for a in self.recorder.written if a in self.owner]
        if written:
            self.writes[node.name] = tuple(dict.fromkeys(written))
        self.storages[node.name] = self._storages(node, value)
        for memory, part in parts:
            self.input_of[memory] = self.owner[memory_of(part)]
        self.bytes_of[node.name] = value_bytes(value)
        if node.op == "get_attr":
            own_bytes = self.bytes_of[node.name]
            self.bytes_of[node.name] = self.given_bytes.get(str(node.target), own_bytes)
        if node.op in ("placeholder", "get_attr"):
            assert self.kinds_found is not None
            held = self.fetch_attr(str(node.target)) if node.op == "get_attr" else None
            self.kinds_found.begin(node, node.meta.get("val") if held is None else held, value)
        else:
            keys = [key for read in node.all_input_nodes for key in self._keys(read)]
            if node.op == "call_module":
                keys += self._keys_of_module(self.fetch_attr(str(node.target)))
            keys += [s.owner for s in self.storages[node.name] if s.kind == "weight"]
            keys += [s.owner for s in written if s.kind == "weight"]
            if keys:
                self.weights_read[node.name] = tuple(dict.fromkeys(keys))

    def substitute(self, node: fx.Node) -> Any:
        value = super().substitute(node)
        if isinstance(node.target, OpOverload):
            self._believe_schema(node.target, node, value)
        return value

    def _believe_schema(self, target: OpOverload, node: fx.Node, value: Any) -> None:
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        self.recorder.written.extend(map(memory_of, written_arguments(target, args, kwargs)))
        schema = target._schema
        given = {a.name: v for a, v in zip(schema.arguments, args, strict=False)} | kwargs
        results = value if isinstance(value, (tuple, list)) else [value]
        for declared, result in zip(schema.returns, results, strict=False):
            if declared.alias_info is None:
                continue
            for argument in schema.arguments:
                alias = argument.alias_info
                if alias is None or not (alias.before_set & declared.alias_info.before_set):
                    continue
                for source in tensors_in(given.get(argument.name))[:1]:
                    known = self.owner.get(memory_of(source))
                    for part in tensors_in(result) if known else ():
                        self.owner[memory_of(part)] = known  # type: ignore[assignment]

    def _storages(self, node: fx.Node, value: Any) -> tuple[Storage, ...]:
        found: dict[Storage, None] = {}
        kind: Literal["input", "operator"] = "input" if node.op == "placeholder" else "operator"
        made = 0
        for tensor in tensors_in(value):
            address = memory_of(tensor)
            if address not in self.owner:
                size_bytes = (
                    tensor.untyped_storage().nbytes()
                    if isinstance(address, int) and is_flat(tensor)
                    else value_bytes(tensor)
                )
                self.owner[address] = Storage(kind, node.name, made, int(size_bytes))
                made += 1
            found[self.owner[address]] = None
        return tuple(found)

    def _keys(self, read: fx.Node) -> list[str]:
        if read.op != "get_attr":
            return []
        value = self.fetch_attr(str(read.target))
        if isinstance(value, nn.Module):
            return self._keys_of_module(value)
        return [*self.keys_of.get(id(value), ())]

    def _keys_of_module(self, module: nn.Module) -> list[str]:
        tensors = [*module.parameters(), *module.buffers()]
        return [key for tensor in tensors for key in self.keys_of.get(id(tensor), ())]


@functools.cache
def _saved_names(function: type) -> tuple[str, ...]:
    """Return the attributes of a class of autograd nodes that hold raw saved values."""
    return tuple(name for name in dir(function) if name.startswith("_raw_saved_"))


def _held_by_functions(value: Any) -> list[torch.Tensor]:
    """Return tensors in attributes of a ``torch.autograd.Function``, which no hook reports."""
    functions = {id(tensor.grad_fn): tensor.grad_fn for tensor in tensors_in(value)}
    return [
        tensor.detach()
        for function in functions.values()
        if isinstance(function, torch.autograd.function.BackwardCFunction)
        for tensor in tensors_in(list(vars(function).values()))
    ]


class _SavedReplay(_StorageReplay):
    """A replay with autograd on, which records saved tensors through hooks."""

    differentiates = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.packed: list[torch.Tensor] = []
        self.kept: list[torch.Tensor] = []
        self.functions: dict[int, torch.autograd.graph.Node] = {}
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self.modes = (*self.modes, hooks)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.packed.extend(part.detach() for part in tensors_in(tensor))
        return tensor

    def observe(self, node: fx.Node) -> Any:
        self.packed.clear()
        value = super().observe(node)
        self.packed.extend(_held_by_functions(value))
        found: dict[Storage, None] = {}
        made = 0
        for tensor in self.packed:
            address = memory_of(tensor)
            if address not in self.owner:
                size_bytes = int(tensor.untyped_storage().nbytes())
                self.owner[address] = Storage("internal", node.name, made, size_bytes)
                made += 1
            if self.owner[address].kind != "weight":
                found[self.owner[address]] = None
        for number, tensor in enumerate(self._numbers(value)):
            found[Storage("number", node.name, number, tensor.untyped_storage().nbytes())] = None
        # Kept alive, so that no other storage can take the address.
        self.kept.extend(self.packed)
        if found:
            self.saved[node.name] = tuple(found)
        return value

    def _numbers(self, value: Any) -> Iterator[torch.Tensor]:
        """Yield the Python numbers saved by the autograd nodes that a value added.

        In a run on fakes they alone are real: autograd itself makes tensors of them.
        """
        functions = [tensor.grad_fn for tensor in tensors_in(value)]
        while functions:
            function = functions.pop()
            if function is None or id(function) in self.functions:
                continue
            self.functions[id(function)] = function
            functions += [before for before, _ in function.next_functions]
            for name in _saved_names(type(function)):
                saved = getattr(getattr(function, name), "data", None)
                if type(saved) is torch.Tensor and not saved.dim():
                    yield saved
