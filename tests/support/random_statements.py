# ruff: noqa: E501
"""The statements that random modules are made of, each chosen to fit the values at hand."""

import torch

from tests.support.random_modules import Builder, Pair, is_float

STATEMENTS = []


def weight(number):
    """Register a kind of statement that is drawn with this weight."""

    def register(function):
        STATEMENTS.append((function, number))
        return function

    return register


def expressions(number, pick, *forms):
    """Register expressions of a value that is picked, and perhaps of another one."""

    @weight(number)
    def drawn(b):
        picked = pick(b)
        if not picked or not all(picked):
            return None
        given = (picked,) if isinstance(picked, str) else picked
        text = b.rng.choice(forms)
        for place, name in enumerate(given):
            text = text.replace(f"{{{place}}}", name)
        return assign(b, text.replace("{}", given[0]))


def write_statement(b: Builder) -> bool:
    """Try to add a statement of a random kind."""
    kinds, weights = zip(*STATEMENTS, strict=True)
    return bool(b.rng.choices(kinds, weights)[0](b))


def assign(b: Builder, expression: str, members: tuple[str, ...] = ()) -> str | None:
    """Add a variable; return its name, or None if the expression does not work."""
    name = b.fresh()
    return name if b.emit(f"{name} = {expression}", name, members=members) else None


# -- what there is -------------------------------------------------------------------------


def floats(b, least=0, most=9, last=None):
    """Pick a tensor of real numbers by its number of dimensions and its last size."""

    def accepts(value):
        return (
            is_float(value)
            and least <= value.dim() <= most
            and (last is None or (value.dim() > 0 and value.shape[-1] == last))
        )

    return b.pick(accepts)


def tensors(b, dtype):
    return b.pick(lambda v: isinstance(v, torch.Tensor) and v.dtype is dtype)


def numbers(b):
    """Pick an expression of a small whole number, a variable if there is one."""
    name = b.pick(lambda v: type(v) is int)
    return name if name and b.rng.random() < 0.6 else str(b.rng.randint(1, 3))


def joins(b, a):
    """Pick a tensor that can be combined with `a`, now and then a parameter or a buffer."""
    shape = b.values[a].shape
    stored = [*b.weights, *b.buffers]
    if stored and b.rng.random() < 0.25:
        return b.rng.choice(stored)

    def accepts(value):
        if not is_float(value):
            return False
        try:
            return torch.broadcast_shapes(shape, value.shape) == shape
        except RuntimeError:
            return False

    return b.pick(accepts)


def axis(b, a):
    dimensions = b.values[a].dim()
    return b.rng.randrange(-dimensions, dimensions) if dimensions else 0


def slices(b, a):
    """Return an index of `a` that is a view of it."""
    shape = b.values[a].shape
    parts = []
    for size in shape[: b.rng.randint(1, len(shape))]:
        parts.append(
            b.rng.choice(
                [":", "0", f"{size - 1}:", "::2", ":-1" if size > 1 else ":", "None", "-1"]
            )
        )
    return ", ".join(parts)


# -- arithmetic ----------------------------------------------------------------------------

UNARY = ("torch.sin({})", "{}.tanh()", "torch.sigmoid({})", "F.gelu({})", "F.relu({})", "-{}",
         "{}.abs()", "{} * 0.5", "1 - {}", "{}.clamp(-1, 1)", "{} / 3", "{}.square()", "{}.exp()",
         "F.softmax({}, -1)", "F.silu({})", "{}.clone()", "{}.contiguous()", "torch.erf({})",
         "F.normalize({}, dim=-1)", "{}.cumsum(-1)", "F.elu({})", "{}.nan_to_num()", "{}.round()",
         "F.hardtanh({})", "{}.tril()", "{}.flip(0)", "{}.roll(1, 0)", "F.glu({}, -1)",
         "torch.fft.rfft({}).abs()", "F.pad({}, (1, 0))", "{}.repeat_interleave(2, -1)")  # fmt: skip


expressions(8, floats, *UNARY)


@weight(10)
def binary(b):
    a = floats(b)
    other = a and joins(b, a)
    if not other:
        return None
    form = b.rng.choice(
        ["{} + {}", "{} * {}", "{} - {}", "torch.maximum({}, {})", "torch.sub({}, {}, alpha=2)",
         "{1} * {0}.mean()", "torch.where({0} > 0, {0}, {1})", "torch.lerp({0}, {1}, 0.3)",
         "{0} + {0} * {1}", "torch.atan2({0}, {1})", "torch.addcmul({0}, {0}, {1}, value=0.5)"]
    )  # fmt: skip
    return assign(b, form.format(a, other))


@weight(3)
def product(b):
    a = floats(b, 2)
    other = a and b.pick(lambda v: is_float(v) and v.dim() >= 2 and v.dtype is b.values[a].dtype)
    if not other:
        return None
    form = b.rng.choice(
        ["{} @ {}.transpose(-1, -2)", "torch.matmul({}, {})", "torch.einsum('...i,...i->...', {}, {})",
         "F.linear({}, {})", "F.scaled_dot_product_attention({0}, {1}, {1})"]
    )  # fmt: skip
    return assign(b, form.format(a, other))


@weight(4)
def reduction(b):
    a = floats(b, 1)
    if not a:
        return None
    form = b.rng.choice(
        ["{}.mean({})", "{}.sum({}, keepdim=True)", "{}.amax({})", "{}.std({}, unbiased=False)",
         "{}.mean()", "{}.sum()", "{}.logsumexp({})", "{}.argmax({})", "{}.norm(dim={})",
         "{}.argsort({})", "{}.prod({})", "({} > 0).any({})", "{}.max()"]
    )  # fmt: skip
    return assign(b, form.format(a, axis(b, a)))


@weight(5)
def several_results(b):
    """Functions that return tuples; the tuple is kept, or taken apart at once."""
    a = floats(b, 1)
    if not a:
        return None
    form = b.rng.choice(
        ["{}.max({})", "torch.topk({}, 1, {})", "{}.sort({})", "torch.var_mean({}, {})",
         "{}.chunk(2, {})", "{}.split(1, {})", "{}.unbind({})", "{}.tensor_split(2, {})",
         "{}.min({})", "torch.aminmax({}, dim={})", "torch.frexp({})"]
    ).format(a, axis(b, a))  # fmt: skip
    if b.rng.random() < 0.5:
        return assign(b, form)
    first, second = b.fresh(), b.fresh()
    return b.emit(f"{first}, {second} = {form}", first, second)


@weight(6)
def element(b):
    name = b.pick(lambda v: isinstance(v, (tuple, list, dict, Pair)))
    if not name:
        return None
    value = b.values[name]
    if isinstance(value, dict):
        return assign(b, f"{name}[{b.rng.choice(list(value))!r}]")
    if isinstance(value, Pair):
        return assign(b, f"{name}.{b.rng.choice(['first', 'second'])}")
    return len(value) and assign(b, f"{name}[{b.rng.randrange(-1, len(value))}]")


@weight(3)
def container(b):
    names = [b.pick(lambda v: True) for _ in range(b.rng.randint(1, 3))]
    form = b.rng.choice(["[{}]", "({},)", "dict(enumerate([{}]))", "torch.cat([{}])",
                         "torch.stack([{}], -1)", "sum([{}])"])  # fmt: skip
    return assign(b, form.format(", ".join(names)))


# -- views ---------------------------------------------------------------------------------


@weight(10)
def view(b):
    a = floats(b, 1)
    if not a:
        return None
    if b.rng.random() < 0.4:
        return assign(b, f"{a}[{slices(b, a)}]")
    stored = [*b.weights, *b.buffers]
    if stored and b.rng.random() < 0.15:
        return assign(
            b, f"{b.rng.choice(stored)}.{b.rng.choice(['t()', 'view(-1)', 'unsqueeze(0)'])}"
        )
    x, y = axis(b, a), axis(b, a)
    form = b.rng.choice(
        ["{0}.view(-1)", "{0}.reshape({0}.shape[0], -1)", "{0}.flatten()", "{0}.unsqueeze({1})",
         "{0}.transpose({1}, {2})", "{0}.mT", "{0}.select({1}, 0)", "{0}.narrow({1}, 0, 1)",
         "{0}.expand(2, *{0}.shape)", "{0}.permute(*reversed(range({0}.dim())))", "{0}.squeeze()",
         "{0}.diagonal()", "{0}.movedim({1}, {2})", "{0}.view_as({0})", "{0}.unfold(-1, 2, 1)",
         "{0}.reshape(-1, {0}.size(-1))", "{0}.unflatten(-1, (-1, 2))", "{0}.view({0}.size(0), -1)",
         "{0}.detach()", "{0}.expand_as({0})", "{0}.swapaxes({1}, {2}).contiguous()",
         "torch.broadcast_to({0}, (2, *{0}.shape))", "{0}.as_strided((2,), (1,))", "{0}.data"]
    )  # fmt: skip
    return assign(b, form.format(a, x, y))


# -- writes in place -----------------------------------------------------------------------


@weight(10)
def write(b):
    a = floats(b, 1)
    other = a and joins(b, a)
    if not other:
        return None
    form = b.rng.choice(
        ["{0}.add_({1})", "{0}.mul_(0.5)", "{0}.copy_({1})", "{0} += {1}", "{0}.sub_({1}, alpha=0.5)",
         "{0}.relu_()", "{0}.zero_()", "{0}.clamp_(-1, 1)", "{0}.fill_(0.5)", "{0}.neg_()",
         "F.relu({0}, inplace=True)", "{0}.masked_fill_({0} > 1, 0.0)", "{0}.lerp_({1}, 0.5)",
         "{0}.index_copy_(0, torch.tensor([0]), {0}[-1:] * 2)", "{0}.tanh_()", "{0} *= 0.5",
         "{0}.index_add_(0, torch.tensor([0]), {0}[-1:])", "{0}.t_()", "{0}.unsqueeze_(0)",
         "torch.add({0}, {1}, out={0})", "{0}.scatter_(0, torch.zeros_like({0}, dtype=torch.long), 0.5)",
         "torch.sigmoid_({0})", "{0}.cumsum_(0)", "F.dropout({0}, 0.5, inplace=True)",
         "F.leaky_relu_({0})", "torch.nn.init.ones_({0})", "{0}.addcmul_({0}, {0}, value=0.1)"]
    )  # fmt: skip
    text = form.format(a, other)
    if b.rng.random() < 0.3:
        # The same tensor under one more name.
        name = b.fresh()
        if not text.startswith(a + " "):
            return b.emit(f"{name} = {text}", name)
    return b.emit(text)


@weight(5)
def set_item(b):
    a = floats(b, 1)
    if not a:
        return None
    if b.rng.random() < 0.2:
        return b.emit(f"{a}[{a} > 0.5] = 0.25")
    index = slices(b, a).replace("None", ":")
    value = b.rng.choice(
        ["0.5", f"{a}[{index}] * 2", joins(b, a) or "1.0", f"{a}.flip(0)[{index}]"]
    )
    return b.emit(f"{a}[{index}] = {value}")


@weight(2)
def write_view_of(b):
    """Take a view, write to it, read its base."""
    a = floats(b, 2)
    if not a:
        return None
    first, second = b.fresh(), b.fresh()
    view_of = b.rng.choice(["{}[0]", "{}.view(-1)", "{}.transpose(0, 1)", "{}[..., 1:]"]).format(a)
    how = b.rng.choice(["mul_(2)", "add_(1)", "copy_(" + first + ".flip(0))", "sigmoid_()"])
    return b.emit(f"{first} = {view_of}\n{first}.{how}\n{second} = {a} * 2", first, second)


# -- numbers, types, nothing ---------------------------------------------------------------


expressions(
    4, lambda b: b.pick(lambda v: isinstance(v, torch.Tensor) and v.dim() > 0),
    "{}.shape[0]", "{}.size(-1)", "{}.dim()", "{}.numel() // 2", "len({})",
    "{}.shape[-1] * 2 - 1", "{}.size(0) + {}.size(-1)", "tuple({}.shape)",
    "{}.shape", "list({}.stride())", "{}.is_floating_point()",
)  # fmt: skip


@weight(4)
def use_number(b):
    n = numbers(b)
    a = floats(b)
    if not a:
        return None
    return assign(
        b,
        b.rng.choice(
            ["{0} * {1}", "{0} / ({1} + 1)", "torch.arange({1}).float() + {0}.mean()",
             "{0}.expand({1}, *{0}.shape)", "{0}.flatten()[:{1}]", "torch.full(({1}, 4), 0.5)",
             "{0}.new_zeros({1}, 4)", "torch.ones({0}.shape[0], {1}) * {0}.sum()", "{0} + {1} % 2",
             "torch.zeros({1}, 4).add_(1)", "torch.eye({1}, 4)", "torch.linspace(0, 1, {1})",
             "torch.tensor([0.5, {1}])", "torch.ones_like({0}) * {1}", "{0}.new_tensor([{1}, 1])"]
        ).format(a, n),
    )  # fmt: skip


expressions(
    4, lambda b: b.pick(lambda v: isinstance(v, torch.Tensor)),
    "{}.to(torch.float64)", "{}.half()", "{}.bfloat16()", "{}.float()", "{}.long()",
    "{}.int()", "{} > 0", "{}.to(torch.float32)", "{}.type_as({})", "{}.to(torch.bool)",
    "{}.float() * 0.1", "{}.to(torch.float32, copy=True)",
)  # fmt: skip
expressions(
    4, lambda b: (tensors(b, torch.bool), floats(b))[::-1],
    "torch.where({1}, {0}, 0.0)", "~{1}", "{1}.any()", "{0}.masked_fill({1}, 0.5)",
    "{1}.float() - {0}.mean()", "{1} & {1}.flip(0)", "{0} * {1}",
    "{0}.masked_select({1}).sum()", "torch.where({1}.any(), {0}, {0} * 2)",
)  # fmt: skip
expressions(
    4, lambda b: (tensors(b, torch.int64), floats(b, 1))[::-1],
    "{0}[{1} % {0}.shape[0]]", "{0}.index_select(0, {1}.flatten() % {0}.shape[0])",
    "{0}.gather(0, {1} % {0}.shape[0])", "F.one_hot({1} % 4, 4).float()", "{1} + 1",
    "{0}.take({1} % 2)", "{1}.flip(0)", "{0}[..., {1} % {0}.shape[-1]]",
)  # fmt: skip


@weight(3)
def option(b):
    """Branch on a keyword that may be None, a flag or a word."""
    names = [n for n in b.values if n.startswith("k")]
    a = floats(b)
    if not names or not a:
        return None
    k = b.rng.choice(names)
    return assign(
        b,
        b.rng.choice(
            ["{0} if {1} is None else {0} * 2", "{0} if {1} is None else {1}", "({0}, {1})",
             "{0} * 2 if isinstance({1}, str) and {1} == 'add' else {0}",
             "{0} * {1} if isinstance({1}, (int, float)) else {0}", "None",
             "{0} + ({1} if torch.is_tensor({1}) and {1}.is_floating_point() else 1)"]
        ).format(a, k),
    )  # fmt: skip


# -- random numbers ------------------------------------------------------------------------


expressions(
    4, floats,
    "F.dropout({}, 0.5, self.training)", "F.dropout({}, 0.3)", "torch.rand_like({})",
    "torch.bernoulli(torch.sigmoid({}))", "{} + torch.randn({}.shape)", "torch.randn(2, 4)",
    "torch.randint(0, 4, (2, 3))", "torch.randperm(4)", "F.rrelu({}, training=True)",
    "F.gumbel_softmax({}, dim=-1)", "torch.normal({}, 0.1)", "F.alpha_dropout({}, 0.5, True)",
    "torch.empty_like({}).uniform_()", "torch.multinomial(F.softmax({}.flatten(), 0), 2)",
    "torch.zeros(2, 4).bernoulli_(0.5)", "{} + torch.empty(4).normal_().mean()",
)  # fmt: skip
