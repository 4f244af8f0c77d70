# ruff: noqa: E501
"""Statements of random modules that own something: layers, parameters, buffers, submodules."""

import torch

from tests.support.random_modules import Builder, is_float
from tests.support.random_statements import (
    UNARY,
    assign,
    floats,
    joins,
    tensors,
    weight,
    write_statement,
)


def single(b, least=0, most=9):
    """Pick a float32 tensor, which layers take."""
    return b.pick(lambda v: is_float(v) and v.dtype is torch.float32 and least <= v.dim() <= most)


def member(b, text, *, prefix="m"):
    """Return the name and the statement of a new member."""
    name = b.fresh(prefix)
    return f"self.{name}", f"self.{name} = {text}"


# -- layers, parameters, buffers -----------------------------------------------------------


@weight(8)
def layer(b):
    a = single(b, 1, 3)
    if not a:
        return None
    size = b.values[a].shape[-1]
    channels = b.values[a].shape[1] if b.values[a].dim() > 1 else size
    out = b.rng.choice([size, size, 2, 4])
    text, call = b.rng.choice(
        [(f"nn.Linear({size}, {out})", "{}({})"), (f"nn.Linear({size}, {out}, bias=False)", "{}({})"),
         (f"nn.Linear({size}, {size})", "{1} + {0}({1})"), (f"nn.LayerNorm({size})", "{}({})"),
         (f"nn.BatchNorm1d({channels})", "{}({})"),
         (f"nn.InstanceNorm1d({channels}, track_running_stats=True)", "{}({})"),
         ("nn.Dropout(0.5)", "{}({})"), ("nn.ReLU(inplace=True)", "{}({})"), ("nn.Hardtanh()", "{}({})"),
         (f"nn.Conv1d({channels}, {out}, 1)", "{}({})"), (f"nn.GroupNorm(1, {channels})", "{}({})"),
         (f"nn.Conv1d({channels}, 2, 3, padding=1, padding_mode='circular')", "{}({})"),
         (f"nn.LSTM({size}, 4, batch_first=True)", "{}({})"), (f"nn.GRU({size}, 3)", "{}({})[0]"),
         (f"nn.MultiheadAttention({size}, 1, batch_first=True)", "{0}({1}, {1}, {1})"),
         (f"nn.MultiheadAttention({size}, 1, dropout=0.5)", "{0}({1}, {1}, {1}, need_weights=False)[0]"),
         (f"nn.TransformerEncoderLayer({size}, 1, 8, batch_first=True)", "{}({})"),
         (f"nn.Sequential(nn.Linear({size}, 4), nn.ReLU(inplace=True), nn.Linear(4, {out}))", "{}({})"),
         (f"nn.Bilinear({size}, {size}, 2)", "{0}({1}, {1})"), ("nn.MaxPool1d(2, return_indices=True)", "{}({})"),
         (f"torch.nn.utils.parametrizations.weight_norm(nn.Linear({size}, 4))", "{}({})"),
         (f"torch.nn.utils.parametrizations.spectral_norm(nn.Linear({size}, 4))", "{}({})"),
         ("nn.AvgPool1d(2)", "{}({})")]
    )  # fmt: skip
    if b.depth == 0 and b.rng.random() < 0.1:
        # A module of modules, whose flattened names are those of another.
        name, made = "self.a.b", (f"self.a = nn.Module()\nself.a.b = {text}",)
        if hasattr(b.module, "a"):
            return None
    else:
        name, made = member(b, text)
        made = (made,)
    done = assign(b, call.format(name, a), (*made, f"{name}.train(self.training)"))
    if done:
        # Its training flag follows the model's.
        b.members.pop()
        b.layers.append(name)
        if "nn.Linear(" in text and "Seq" not in text and "utils" not in text:
            b.weights.append(f"{name}.weight")
    return done


@weight(4)
def call_again(b):
    a = single(b, 1, 3)
    return a and b.layers and assign(b, f"{b.rng.choice(b.layers)}({a})")


@weight(2)
def embedding(b):
    i = tensors(b, torch.int64)
    if not i:
        return None
    name, made = member(
        b, f"nn.{b.rng.choice(['Embedding(6, 4)', 'Embedding(6, 4, padding_idx=0)'])}"
    )
    done = assign(b, f"{name}({i} % 6)", (made,))
    if done:
        b.weights.append(f"{name}.weight")
    return done


@weight(4)
def parameter(b):
    a = floats(b, 1)
    if not a:
        return None
    form = b.rng.choice(
        ["nn.Parameter(torch.randn({}))", "nn.Parameter(torch.randn(4, {}))", "nn.Parameter(torch.ones(1))",
         "nn.Parameter(torch.randn({}), requires_grad=False)"]
    )  # fmt: skip
    if b.weights and b.rng.random() < 0.4:
        other = b.rng.choice(b.weights)
        # Tied: one object under two names, its transpose, or a part of its storage.
        form = b.rng.choice(
            [other, other, f"nn.Parameter({other}.data.t())", f"nn.Parameter({other}.data[0])"]
        )
    name, made = member(b, form.replace("{}", str(b.values[a].shape[-1])))
    call = b.rng.choice(["{0} * {1}", "{0} + {1}.sum()", "F.linear({0}, {1})", "{0} @ {1}.t()", "{1} * 2",
                         "{1}.view(-1)"])  # fmt: skip
    done = assign(b, call.format(a, name), (made,))
    if done:
        b.weights.append(name)
    return done


@weight(1)
def tied_layers(b):
    """Two layers with one weight."""
    a = single(b, 1, 3)
    if not a:
        return None
    size = b.values[a].shape[-1]
    first, made = member(b, f"nn.Linear({size}, {size})")
    second, again = member(b, f"nn.Linear({size}, {size}, bias=False)")
    tie = f"{second}.weight = {first}.weight"
    return assign(b, f"{second}({first}({a}).relu())", (made, again, tie))


@weight(1)
def parameter_of_parent(b):
    a = floats(b)
    if not a or b.up is None or not b.up.weights:
        return None
    name = b.rng.choice(b.up.weights).replace("self.", "self.up[0].", 1)
    return assign(b, f"{a} * {name}.sum()")


@weight(4)
def buffer(b):
    a = floats(b, 1)
    if not a:
        return None
    name = b.fresh("m")
    persistent = b.rng.choice(["", ", persistent=False"])
    shape = b.rng.choice([tuple(b.values[a].shape), (b.values[a].shape[-1],), ()])
    made = f"self.register_buffer({name!r}, torch.ones({shape}){persistent})"
    done = assign(b, f"{a} + self.{name}", (made,))
    if done:
        b.buffers.append(f"self.{name}")
    return done


@weight(4)
def write_buffer(b):
    a = floats(b)
    if not a or not b.buffers:
        return None
    name = b.rng.choice(b.buffers)
    form = b.rng.choice(
        ["{0}.add_({1}.mean().detach())", "{0}.mul_(0.9)", "{0} += 1", "{0}.copy_({1}.detach())",
         "{0} = {0} * 0.5 + 1", "{0} = {0} + {1}.detach().mean()", "{0}[0] = 2.0", "{0}.lerp_({1}.detach(), 0.1)",
         "{0}.copy_({1}.detach().mean().expand_as({0}))", "{0}.fill_(3)", "{0}.view(-1)[0] = 0.5",
         "if self.training:\n    {0}.mul_(2)", "{0}.uniform_()", "{0}.data.add_(1)"]
    )  # fmt: skip
    return b.emit(form.format(name, a))


@weight(2)
def read_stored(b):
    stored = [*b.buffers, *b.weights]
    if not stored:
        return None
    name = b.rng.choice(stored)
    return assign(
        b, b.rng.choice(["{}", "{} * 2", "{}.detach()", "{}.sum()", "{}.clone()"]).format(name)
    )


@weight(1)
def constant(b):
    a = floats(b, 1, last=4)
    if not a:
        return None
    name, made = member(b, "torch.tensor([0.5, 1.0, 1.5, 2.0])")
    return assign(b, f"{a} * {name}", (made,))


@weight(1)
def write_parameter(b):
    if not b.weights:
        return None
    return b.emit(f"with torch.no_grad():\n    {b.rng.choice(b.weights)}.mul_(0.5)")


# -- regions and submodules ----------------------------------------------------------------


@weight(2)
def region(b):
    """Compute something with autograd off or in another precision."""
    a = floats(b)
    if not a:
        return None
    name, then = b.fresh(), b.fresh()
    around = b.rng.choice(["torch.no_grad()", "torch.no_grad()", "torch.autocast('cpu', dtype=torch.bfloat16)",
                           "torch.enable_grad()", "torch.autocast('cpu', enabled=False)"])  # fmt: skip
    first = b.rng.choice(UNARY).format(a)
    stored = b.rng.choice([*b.weights, "1.0"])
    other = joins(b, a)
    second = b.rng.choice(
        [f"{name} * {stored}", f"{name}.add_(1)", f"{name} @ {a}.mT", f"{name} + {other}"]
    )
    return b.emit(f"with {around}:\n    {name} = {first}\n    {then} = {second}", name, then)


@weight(4)
def submodule(b):
    """Write a class, and call one of it once or twice."""
    if b.depth >= 2 or len(b.classes) >= 3:
        return None
    given = [b.pick(lambda v: not isinstance(v, str)) for _ in range(b.rng.randint(1, 2))]
    if not any(is_float(b.values[name]) for name in given):
        return None
    inner = Builder(
        b.rng,
        b.classes,
        f"Block{len(b.classes)}",
        [f"y{n}" for n in range(len(given))] + ["k9=None"],
        {f"y{n}": _copied(b.values[name]) for n, name in enumerate(given)} | {"k9": None},
        depth=b.depth + 1,
        differentiable=b.differentiable,
        up=b,
    )
    inner.module.train(b.module.training)
    length, tries = b.rng.randint(1, 6), 0
    while len(inner.statements) < length and tries < 8 * length:
        write_statement(inner)
        tries += 1
    made = inner.finish(0, 2)
    scope = {name: b.scope[name] for name in ("torch", "nn", "F", "Pair")}
    for part in b.classes:
        exec(str(part), scope)
        b.scope[part.name] = scope[part.name]
    name, text = member(b, f"{made.name}(self)")
    done = assign(b, f"{name}({', '.join(given)})", (text, f"{name}.train(self.training)"))
    if not done:
        if b.classes[-1] is made:
            b.classes.pop()
        return None
    b.members.pop()
    if b.rng.random() < 0.4:
        keyword = b.rng.choice(["", ", k9=2"])
        again = [b.pick(lambda v, like=n: type(v) is type(b.values[like])) for n in given]
        assign(b, f"{name}({', '.join(again)}{keyword})")
    return done


def _copied(value):
    return torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, value)


@weight(1)
def mapped(b):
    a = floats(b, 2)
    return a and assign(b, f"torch.vmap(torch.sin)({a})" if b.rng.random() < 0.5
                        else f"torch.vmap(lambda row: row * row.sum())({a})")  # fmt: skip
