"""Operators of a graph that may be recomputed.

In the backward pass a stage may run operators again instead of keeping their values
(:mod:`solver.model.recomputation`). Eligible operators make the same value again and have no effect
afterwards. Unknown operators are not eligible.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from operator import attrgetter
from typing import Final

import torch
from torch import fx, nn
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.fx.node import _get_qualified_name
from torch.nn.modules.batchnorm import _BatchNorm

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.capture.layers import layer_calls
from fx_bridge.storages.table import Storage
from fx_bridge.storages.tensor_subclasses import is_wrapper, tensor_leaves

_CPU_STATE_BYTES: Final = 5_056
_STATE_BYTES: Final[Mapping[str, int]] = {"cuda": 16}
"""Size of the state of a random number generator, by device type: ``get_rng_state().nbytes``."""

_NAMESPACES: Final = ("aten", "prims")
"""Operators of others may keep a state or draw random numbers without declaring it."""
_FUNCTIONS: Final = ("torch.", "_operator.", "math.", "builtins.", "fx_bridge.")
_NOT_FUNCTIONS: Final = ("torch.distributed.", "torch.utils.", "torch.autograd.")
_BATCH_NORMS: Final = frozenset(
    {
        "batch_norm",
        "native_batch_norm",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "_native_batch_norm_legit",
        "_batch_norm_with_update",
    }
)


def in_place_operators(captured: CapturedGraph) -> frozenset[str]:
    """Return the operators that write into the storage of the value that they alias."""
    table = captured.storage_table
    return frozenset(
        node.name
        for node in captured.operators
        if table.alias_of(node) is not None
        and any(
            storage.kind != "weight" and storage in table.storages[node.name]
            for storage in table.writes.get(node.name, ())
        )
    )


def rng_state_bytes(captured: CapturedGraph) -> dict[str, int]:
    """Return the bytes of the generator state at the start of each operator with random numbers.

    Examples
    --------
    >>> from fx_bridge.capture.graph import capture
    >>> captured = capture(nn.Dropout(), (torch.ones(4),))
    >>> rng_state_bytes(captured), rng_state_bytes(captured.with_kernels("cuda"))
    ({'dropout': 5056}, {'dropout': 16})
    """
    return {
        node.name: _STATE_BYTES.get(_device_type(captured, node), _CPU_STATE_BYTES)
        for node in captured.random_operators
    }


def _device_type(captured: CapturedGraph, node: fx.Node) -> str:
    if captured.device_type is not None:
        return captured.device_type
    devices = (tensor.device.type for tensor in tensor_leaves(node.meta.get("val")))
    actual = next(devices, "cpu")
    # The same default as for kernels: see DeviceKernels.
    return "cuda" if actual == "meta" else actual


def recomputation_regions(captured: CapturedGraph, modules: Sequence[str] = ()) -> dict[str, int]:
    """Return the number of the region of each operator.

    A region begins at the first operator of each call of a layer, as
    :func:`~fx_bridge.capture.layers.layer_calls` finds them for `modules`, and ends where the next
    one begins, so operators between layers belong to the layer before. The operators before the
    first layer are a region, and so are those after all layers, such as the head and the loss. If
    `modules` are parts of the model's own layers, the last region begins after these. Regions of
    interleaved layers still follow one another; a model without layers is one region.

    Examples
    --------
    >>> from fx_bridge.capture.graph import capture
    >>> layers = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)))
    >>> model = nn.ModuleDict({"layers": layers, "head": nn.Linear(4, 2)})
    >>> model.forward = lambda x: model["head"](model["layers"](x))
    >>> recomputation_regions(capture(model, (torch.ones(3, 4),)))
    {'linear': 0, 'tanh': 0, 'linear_1': 1, 'tanh_1': 1, 'linear_2': 2}
    """
    calls = layer_calls(captured, modules)
    inside = {name for of in (calls, layer_calls(captured)) for name, call in of.items() if call}
    last = next((name for name in reversed(calls) if name in inside), None)
    regions: dict[str, int] = {}
    begun = set()
    region = 0
    for name, call in calls.items():
        if call is not None and call not in begun:
            begun.add(call)
            region += bool(regions)
        regions[name] = region
        region += bool(begun) and name == last
    return regions


def operators_of_layers(captured: CapturedGraph, modules: Sequence[str] = ()) -> frozenset[str]:
    """Return the operators in the regions that begin at layers; all if the model has no layer."""
    regions = recomputation_regions(captured, modules)
    own = {regions[name] for name, call in layer_calls(captured, modules).items() if call}
    return frozenset(name for name, region in regions.items() if region in own or not own)


def recomputable_operators(
    captured: CapturedGraph, saved: Mapping[str, Sequence[Storage]]
) -> frozenset[str]:
    """Return the operators that may run again in the backward pass.

    `saved` is that of the :class:`~fx_bridge.storages.table.StorageTable` of a graph that trains.
    An operator may run again if its value lies in storages that it allocates, and if it and all
    operators with values in these storages

    * are known to be deterministic: ATen operators, functions and modules of torch. Operators and
      Functions of others, collectives, bodies of conditions and loops, calls with a generator of
      their own and operators that do not run on fake tensors are not;
    * write nowhere else. Batch normalisation may update its statistics, because in training its
      results do not depend on them: the second run gets a copy;
    * read no weight, buffer or graph input that any operator writes, and no other value that is
      written later, except in place as :class:`~solver.model.recomputation.Recomputation` knows;
    * do not lie between switches of the grad mode or of autocast, which would not run again.

    Examples
    --------
    >>> from fx_bridge.capture.graph import capture
    >>> class Counts(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.register_buffer("calls", torch.zeros(()))
    ...
    ...     def forward(self, x):
    ...         self.calls += 1
    ...         return x.sin() * self.calls
    >>> captured = capture(Counts(), (torch.ones(4, requires_grad=True),))
    >>> sorted(recomputable_operators(captured, captured.trained.storage_table.saved))
    ['sin']
    """
    # A residual is made for one backward pass; one that others need too is kept.
    shared = {
        storage.owner
        for name, own in saved.items()
        for storage in own
        if storage.kind == "internal" and storage.owner != name
    }
    graph = _Effects(captured)
    return frozenset(
        node.name
        for node in captured.operators
        if node.name not in shared and graph.may_run_again(node)
    )


class _Effects:
    """Writes of the operators of a graph, and their readers."""

    def __init__(self, captured: CapturedGraph) -> None:
        self._captured, self._table = captured, captured.storage_table
        self._place = {node.name: at for at, node in enumerate(captured.operators)}
        self._root: dict[str, str] = {}
        self._homes: dict[Storage, list[fx.Node]] = defaultdict(list)
        self._writers: dict[Storage, list[fx.Node]] = {}
        self._written_weights: dict[str, set[Storage]] = defaultdict(set)
        for node in captured.operators:
            alias_of = self._table.alias_of(node)
            self._root[node.name] = (
                node.name if alias_of is None else self._root.get(alias_of, alias_of)
            )
            for storage in self._table.storages[node.name]:
                self._homes[storage].append(node)
            for storage in self._table.writes.get(node.name, ()):
                self._writers.setdefault(storage, []).append(node)
                if storage.kind == "weight":
                    self._written_weights[storage.owner].add(storage)
        switches = [at for at, node in enumerate(captured.operators) if _is_switch(node)]
        self._switched = range(switches[0], switches[-1] + 1) if switches else range(0)

    def may_run_again(self, node: fx.Node) -> bool:
        """Return True if an operator, and all with values in its storages, may run again."""
        own = set(self._table.allocated(node.name))
        if not own or own != set(self._table.storages[node.name]):
            return False
        if not all(map(_is_plain, tensor_leaves(node.meta.get("val")))):
            return False
        family = dict.fromkeys(
            other for s in own for other in (*self._homes[s], *self._writers.get(s, ()))
        )
        return all(
            self._root[member.name] == node.name and self._repeats(member, own) for member in family
        )

    def _repeats(self, node: fx.Node, own: Set[Storage]) -> bool:
        """Return True if an operator does the same again and writes only into `own`."""
        if node.name in self._table.made_up or self._place[node.name] in self._switched:
            return False
        if not _is_known(node, self._captured.module):
            return False
        written = set(self._table.writes.get(node.name, ())) - own
        statistics: set[Storage] = set()
        if written and _is_batch_norm(node, self._captured.module):
            statistics = {storage for storage in written if storage.kind == "weight"}
        return written == statistics and not self._reads_changed(node, statistics)

    def _reads_changed(self, node: fx.Node, statistics: Set[Storage]) -> bool:
        """Return True if the operands of an operator may have changed when it runs again."""
        keys = self._table.weights_read.get(node.name, ())
        if any(self._written_weights[key] - statistics for key in keys):
            return True
        for read in node.all_input_nodes:
            for storage in self._table.storages.get(read.name, ()):
                if storage not in self._writers or storage in statistics:
                    continue
                if storage.kind in ("weight", "input"):
                    return True
                root = self._root[read.name]
                unseen = (w for w in self._writers[storage] if self._root[w.name] != root)
                if any(self._place[w.name] > self._place[node.name] for w in unseen):
                    return True
        return False


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not is_wrapper(tensor)


def _is_switch(node: fx.Node) -> bool:
    """Return True if an operator changes the grad mode, autocast or another global state."""
    name = getattr(node.target, "__name__", "")
    return node.op == "call_function" and (
        node.target is torch._C._set_grad_enabled or name.startswith(("_enter_", "_exit_"))
    )


def _is_known(node: fx.Node, module: nn.Module) -> bool:
    """Return True if an operator is known to be deterministic, random numbers apart."""
    target = node.target
    if node.op == "call_module":
        called = attrgetter(str(target))(module)
        return all(map(_is_known_module, called.modules()))
    if node.kwargs.get("generator") is not None:
        return False
    if isinstance(target, str):
        return True
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        return str(target).partition(".")[0] in _NAMESPACES
    if isinstance(target, HigherOrderOperator):
        return False
    if not hasattr(target, "__name__"):
        return False
    name = _get_qualified_name(target)
    return name.startswith(_FUNCTIONS) and not name.startswith(_NOT_FUNCTIONS)


def _is_known_module(module: nn.Module) -> bool:
    hooks = module._forward_hooks, module._forward_pre_hooks
    backward_hooks = module._backward_hooks, module._backward_pre_hooks
    return (
        type(module).__module__.startswith("torch.nn.modules.")
        and not isinstance(module, nn.SyncBatchNorm)
        and not any((*hooks, *backward_hooks))
    )


def _is_batch_norm(node: fx.Node, module: nn.Module) -> bool:
    if node.op == "call_module":
        return isinstance(attrgetter(str(node.target))(module), _BatchNorm)
    name = str(getattr(node.target, "__name__", node.target))
    return name.partition(".")[0] in _BATCH_NORMS
