import pytest
import torch
from torch import fx, nn

from fx_bridge.capture.graph import capture, placeholder_values
from fx_bridge.storages.tensor_subclasses import tensors_in
from fx_bridge.storages.weights import weight_storages
from tests.support import memory_models
from tests.support.modules import module_with


def views(self, x):
    """One of every way to share memory, or to look as if one did."""
    y = self.linear(x)
    a, b = y.split(2)
    total = a + b
    rows = self.cache[1:5]
    rows.add_(y)
    values, indices = y.max(1)
    same = y.contiguous().to(torch.float32).reshape(4, 4)
    copied = y.t().reshape(16)
    wide = y.unsqueeze(0).expand(3, 4, 4)
    weight = self.linear.weight.t()
    y[2:].mul_(2)
    turned = y.t().contiguous()
    return total, rows + 1, values, indices, same, copied, wide[1:], weight, turned


def traced(self, x):
    y = self.net(x)
    z = y.view(-1)
    z += 1
    self.state.copy_(y[0])
    torch.relu_(y)
    return torch.chunk(y, 2)[0], z


def traced_module():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True))
    return fx.symbolic_trace(module_with(traced, net=net, state=nn.Buffer(torch.zeros(4))))


def dropout():
    return nn.Sequential(nn.Conv2d(4, 4, 1), nn.Dropout(0.0), nn.Flatten(0))


IMAGE = (torch.randn(1, 4, 2, 2),)
OTHERS = ("convnet", "encoder", "lstm", "casts", "tied", "grad-free")
CASES = {
    "views": lambda: (
        module_with(views, linear=nn.Linear(4, 4), cache=nn.Buffer(torch.zeros(6, 4))),
        (torch.randn(4, 4),),
    ),
    "traced": lambda: (traced_module(), (torch.randn(4, 4),)),
    **{name: lambda name=name: memory_models.build(name)[:2] for name in OTHERS},
    "convnet-eval": lambda: (memory_models.convnet()[0].eval(), (torch.randn(2, 3, 16, 16),)),
    "dropout": lambda: (dropout(), IMAGE),
    "dropout-eval": lambda: (dropout().eval(), IMAGE),
    "dropout-traced": lambda: (fx.symbolic_trace(dropout()), IMAGE),
}


def content(storage):
    return torch.empty(0, dtype=torch.uint8).set_(storage).clone()


def real_run(captured):
    """Run on real tensors; yield each node, its value, and the addresses that it changed."""
    inputs = iter(placeholder_values(captured, captured.args, captured.kwargs))
    run, storages = fx.Interpreter(captured.module), {}
    for tensor in (*captured.module.parameters(), *captured.module.buffers()):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
    with torch.no_grad():
        for node in captured.graph.nodes:
            if node.op == "output":
                return
            before = {address: content(storage) for address, storage in storages.items()}
            value = next(inputs) if node.op == "placeholder" else run.run_node(node)
            run.env[node] = value
            changed = {a for a, was in before.items() if not content(storages[a]).equal(was)}
            for tensor in tensors_in(value):
                storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            yield node, value, changed


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:The tensor attributes")
def test_storages_and_writes_are_those_of_a_real_run(case):
    model, args = CASES[case]()
    captured = capture(model, args)
    table = captured.storage_table
    owner_at = {}
    for weight in weight_storages(captured.module, captured.graph).values():
        for tensor in weight.tensors:
            owner_at[tensor.untyped_storage().data_ptr()] = ("weight", weight.key, 0)
    kept = []
    for node, value, changed in real_run(captured):
        kept.append(value)
        addresses = [t.untyped_storage().data_ptr() for t in tensors_in(value)]
        found = table.storages[node.name]
        assert len(set(addresses)) == len(found), node
        for address, storage in zip(dict.fromkeys(addresses), found, strict=True):
            identity = (storage.kind, storage.owner, storage.index)
            assert owner_at.setdefault(address, identity) == identity, node
        memories = [t.untyped_storage() for t in tensors_in(value)]
        sizes = {memory.data_ptr(): memory.nbytes() for memory in memories}
        assert [s.size_bytes for s in found] == list(sizes.values()), node
        written = {(s.kind, s.owner, s.index) for s in table.writes.get(node.name, ())}
        assert {owner_at[address] for address in changed} <= written, node
        assert table.value_bytes[node.name] == sum(t.nbytes for t in tensors_in(value))
    assert not table.made_up


def test_operators_that_only_read_write_nothing():
    table = capture(*CASES["views"]()).storage_table
    assert set(table.writes) == {"add_", "mul_"}
    assert {s.owner for s in table.writes["add_"]} == {"cache"}
    assert {s.owner for s in table.writes["mul_"]} == {"linear"}


def test_tied_weights_are_one_weight_and_views_of_weights_are_the_weight():
    def forward(self, tokens):
        return self.head(self.embed(tokens)), self.embed.weight.t()[0]

    layers = {"embed": nn.Embedding(10, 4), "head": nn.Linear(4, 10, bias=False)}
    model = module_with(forward, **layers, unused=nn.Linear(4, 4))
    model.head.weight = model.embed.weight
    table = capture(model, (torch.zeros(2, 3, dtype=torch.long),)).storage_table
    (weight,) = table.weights.values()
    assert weight.key == "embed.weight"
    assert (weight.names, weight.size_bytes) == (("embed.weight", "head.weight"), 10 * 4 * 4)
    assert all(keys == ("embed.weight",) for keys in table.weights_read.values())
    assert set(table.weights_read) == {"embedding", "linear", "t", "select"}


def test_a_slice_of_a_large_file_costs_the_slice():
    flat = torch.zeros(1000)
    parts = {"a": nn.Parameter(flat[:10]), "b": nn.Parameter(flat[10:30])}
    module = module_with(lambda self: None, **parts, part=nn.Buffer(flat[10:30]))
    (weight,) = weight_storages(module).values()
    assert (weight.names, weight.size_bytes) == (("a", "b", "part"), 30 * 4)


def test_an_operator_that_cannot_run_is_named_and_its_schema_believed():
    model = module_with(lambda self, x: torch.nonzero(x > 0) * 2)
    table = capture(model, (torch.randn(3, 4),)).storage_table
    assert "nonzero" in table.made_up
    # As many rows as there can be.
    assert table.value_bytes["nonzero"] == 12 * 2 * 8


def test_a_graph_from_a_device_that_is_not_here():
    captured = capture(nn.Linear(4, 4), (torch.ones(2, 4),))
    with torch._subclasses.FakeTensorMode():
        for node in captured.graph.nodes:
            if "val" in node.meta:
                node.meta["val"] = torch.empty(node.meta["val"].shape, device="cuda")
    table = captured.storage_table
    assert not table.made_up
    assert table.value_bytes["linear"] == 32


@pytest.mark.parametrize("case", ["encoder", "convnet", "lstm"])
def test_saved_storages_are_those_that_autograd_keeps(case):
    model, args = CASES[case]()
    weights = {p.untyped_storage().data_ptr() for p in [*model.parameters(), *model.buffers()]}
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    captured = capture(model, args)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        alive = captured.module(*args)
    expected = sum(storage.nbytes() for at, storage in kept.items() if at not in weights)
    saved = captured.trained.storage_table.saved
    found = {storage for storages in saved.values() for storage in storages}
    assert sum(storage.size_bytes for storage in found) == expected > 0
    assert len({storage.key for storage in found}) == len(found)
    del alive


def test_an_assert_about_a_constant_of_another_device_is_not_made_up():
    def forward(self, x):
        # The constant is on the CPU, and so is what the exporter asserts of it.
        return self.linear(x) / torch.sqrt(torch.tensor(3.0)).to(x.dtype)

    model = module_with(forward, linear=nn.Linear(4, 4, device="meta"))
    captured = capture(model, (torch.zeros(2, 4),))
    asserts = [node for node in captured.operators if "assert" in node.name]
    assert str(asserts[0].kwargs["device"]) == "cpu"
    assert captured.storage_table.made_up == ()


def test_who_writes_a_weight_through_a_view_and_returns_nothing_reads_that_weight():
    def counted(self, x):
        torch._foreach_add_([self.calls[0]], 1.0)
        return self.linear(x)

    model = module_with(counted, linear=nn.Linear(8, 8), calls=nn.Buffer(torch.zeros(4, 8)))
    captured = capture(model, (torch.ones(2, 8),))
    writer = next(n for n in captured.operators if "_foreach_add_" in n.name)
    assert not tensors_in(writer.meta["val"])
    assert captured.storage_table.weights_read[writer.name] == ("calls",)
