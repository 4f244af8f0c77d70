"""What PyTorch holds in memory while it runs on real CPU tensors: the truth for memory tests.

A dispatch mode sees every tensor that an operator returns; weak references to their storages
say which are still there. It imports nothing that it is compared with.
"""

import torch
from torch import fx, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class StorageTracker(TorchDispatchMode):
    """Counts the storages that exist, by asking all of them again and again.

    ``peaks`` has the most bytes seen under each label; ``after`` what was left when the label
    changed.
    """

    supports_higher_order_operators = True

    def __init__(self):
        super().__init__()
        self.storages = {}
        self.label = None
        self.peaks = {}
        self.after = []

    def watch(self, value):
        """Remember the storages of `value`; return whether one of them is new."""
        before = len(self.storages)
        for tensor in pytree.tree_leaves(value):
            if not isinstance(tensor, torch.Tensor):
                continue
            parts = [tensor]
            if tensor.layout is torch.sparse_coo:
                parts = [tensor._indices(), tensor._values()]
            for part in parts:
                storage = part.untyped_storage()
                reference = StorageWeakRef(storage)
                # Weak references keep an address from being used again.
                self.storages[reference.cdata] = reference, storage.nbytes()
        return len(self.storages) > before

    def watch_numbers(self, outputs):
        """Remember the Python numbers that the graphs of `outputs` save, as of ``x * 0.5``.

        Autograd makes tensors of them by itself, and tells no mode and no hook.
        """
        functions, seen = [tensor.grad_fn for tensor in outputs], set()
        while functions:
            function = functions.pop()
            if function is None or function in seen:
                continue
            seen.add(function)
            functions += [before for before, _ in function.next_functions]
            for name in ("_raw_saved_self", "_raw_saved_other"):
                # As it was packed: to unpack it may run operators again.
                self.watch(getattr(getattr(function, name, None), "data", None))

    def live_bytes(self):
        gone = [key for key, (reference, _) in self.storages.items() if reference.expired()]
        for key in gone:
            del self.storages[key]
        return sum(size_bytes for _, size_bytes in self.storages.values())

    def measure(self):
        live_bytes = self.live_bytes()
        self.peaks[self.label] = max(self.peaks.get(self.label, 0), live_bytes)
        return live_bytes

    def enter(self, label):
        if self.label is not None:
            self.after.append((self.label, self.live_bytes()))
        self.label = label
        self.measure()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if self.watch(result):
            self.measure()
        return result


class _Interpreter(fx.Interpreter):
    def __init__(self, module, tracker):
        super().__init__(module)
        self.tracker = tracker

    def run_node(self, n):
        if n.op not in ("placeholder", "get_attr"):
            self.tracker.enter(n.name)
        return super().run_node(n)


def weights_of(module):
    """Return the tensors that the graph of `module` reads."""
    found = {}
    for node in module.graph.nodes:
        if node.op not in ("get_attr", "call_module") or (node.op == "get_attr" and not node.users):
            continue
        value = module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        read = [value]
        if isinstance(value, nn.Module):
            read = [*value.parameters(), *value.buffers()]
        found.update({id(tensor): tensor for tensor in read if isinstance(tensor, torch.Tensor)})
    return list(found.values())


def track_forward(module, inputs, *, interpret, release_inputs=False):
    """Run forward without autograd; `inputs` is a list of the placeholders' values."""
    tracker = StorageTracker()
    tracker.watch((inputs, weights_of(module)))
    with torch.no_grad(), tracker:
        returned = _forward(module, inputs, tracker, interpret, release_inputs)
        tracker.enter("end")
    del returned
    return tracker


def _forward(module, inputs, tracker, interpret, release_inputs=False):
    if interpret and release_inputs:
        return _Interpreter(module, tracker).boxed_run(inputs)
    if interpret:
        return _Interpreter(module, tracker).run(*inputs, enable_io_processing=False)
    tracker.enter("forward")
    # As a graph without a calling convention: the flat inputs, the same generated code.
    graph = fx.Graph()
    values = {}
    for node in module.graph.nodes:
        values[node] = graph.node_copy(node, lambda read: values[read])
    return fx.GraphModule(module, graph)(*inputs)


def track_training(module, inputs, *, optimizer, masters=False, loss=None, accumulate=False):
    """Run two steps, the second of them tracked.

    `optimizer` makes an optimiser of a list of tensors. With `masters` parameters in 16 bits
    are updated one by one through copies in 32 bits.
    """
    read = {id(tensor) for tensor in weights_of(module)}
    parameters = [p for p in module.parameters() if p.requires_grad and id(p) in read]
    updates = _Updates(parameters, optimizer, masters)
    _step(module, inputs, StorageTracker(), updates, loss)
    if not accumulate:
        updates.forget_gradients()
    for tensor in pytree.tree_leaves(inputs):
        if isinstance(tensor, torch.Tensor):
            tensor.grad = None
    tracker = StorageTracker()
    tracker.watch((inputs, weights_of(module), updates.tensors()))
    tracker.watch([p.grad for p in parameters])
    with tracker:
        _step(module, inputs, tracker, updates, loss)
    return tracker


def _step(module, inputs, tracker, updates, loss):
    returned = _forward(module, inputs, tracker, interpret=True)
    if loss is not None:
        tracker.enter("loss")
        number = loss(module.graph.process_outputs(returned))
        tracker.enter("backward")
        number.backward()
    else:
        leaves = {id(t): t for t in pytree.tree_leaves(returned) if isinstance(t, torch.Tensor)}
        differentiable = [leaf for leaf in leaves.values() if leaf.requires_grad]
        tracker.enter("backward")
        gradients = [torch.ones_like(leaf) for leaf in differentiable]
        torch.autograd.backward(differentiable, gradients)
        del gradients
    tracker.enter("optimizer")
    updates.apply()
    tracker.enter("end")


class _Updates:
    def __init__(self, parameters, optimizer, masters):
        self.parameters = parameters
        self.pairs = []
        rest = []
        for parameter in parameters:
            if masters and parameter.dtype in (torch.bfloat16, torch.float16):
                master = parameter.detach().float().requires_grad_()
                self.pairs.append((parameter, master, optimizer([master])))
            else:
                rest.append(parameter)
        self.rest = optimizer(rest) if rest else None

    def apply(self):
        if self.rest is not None:
            self.rest.step()
        for parameter, master, optimizer in self.pairs:
            if parameter.grad is not None:
                master.grad = parameter.grad.float()
                optimizer.step()
                master.grad = None
                parameter.data.copy_(master.data)

    def forget_gradients(self):
        for parameter in self.parameters:
            parameter.grad = None

    def tensors(self):
        optimizers = [optimizer for _, _, optimizer in self.pairs]
        optimizers += [self.rest] if self.rest is not None else []
        return [master for _, master, _ in self.pairs] + [
            dict(state) for optimizer in optimizers for state in optimizer.state.values()
        ]
