"""Random modules as Python programs, for tests over everything that a model may do.

``random_program(seed)`` writes a program statement by statement, and runs each one when it is
written: what fails, or gives values that are not finite, is left out. So every statement is
chosen for values of known type, shape and aliasing, and the listing that remains is a module
that a person can read, reduce and paste into a test. ``shrink`` does the first part of that.
The statements are in ``random_statements.py`` and ``random_layers.py``.

What is never generated, because torch cannot capture it truthfully (each has a test in
``test_random_modules.py`` that shows so):

* control flow by values, BatchNorm without momentum included: torch.export refuses it.
"""

import ast
import linecache
import random
import sys
import types
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

MOST_ELEMENTS = 600
LARGEST = 1e3

PREAMBLE = """\
import torch
from torch import nn
from torch.nn import functional as F
from tests.support.random_modules import Pair
"""


@dataclass
class Pair:
    """Two values, as a dataclass that torch may take apart."""

    first: Any
    second: Any


torch.export.register_dataclass(Pair)


@dataclass(frozen=True)
class ClassSource:
    """A module class of a program: what it owns, what it computes, what it returns."""

    name: str
    parameters: tuple[str, ...]
    members: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    """Expressions of what is returned; a single one is returned itself."""
    form: str = "tuple"

    def __str__(self) -> str:
        lines = [f"class {self.name}(nn.Module):", "    def __init__(self, up=None):"]
        lines += ["        super().__init__()", "        self.up = [up]"]
        lines += [f"        {line}" for text in self.members for line in text.split("\n")]
        lines += ["", f"    def forward({', '.join(('self', *self.parameters))}):"]
        lines += [f"        {line}" for text in self.statements for line in text.split("\n")]
        lines += [f"        return {returned(self.results, self.form)}"]
        return "\n".join(lines)


def returned(results: tuple[str, ...], form: str) -> str:
    """Return the expression of a container of `results`."""
    if len(results) == 1 and form != "dict":
        return results[0]
    if form == "dict":
        return "{" + ", ".join(f'"r{n}": {text}' for n, text in enumerate(results)) + "}"
    if form == "list":
        return f"[{', '.join(results)}]"
    if form == "pair":
        return f"Pair({results[0]}, ({', '.join(results[1:])},))"
    if form == "nested":
        return f"({results[0]}, {{'rest': [{', '.join(results[1:])}]}})"
    return f"({', '.join(results)},)"


@dataclass(frozen=True)
class Program:
    """A module with inputs, as source.

    Attributes
    ----------
    seed : int
    classes : tuple of ClassSource
        The last one is the model.
    args, kwargs : str
        Expressions of the inputs.
    setup : tuple of str
        Statements on ``model`` after it is made: its mode, what is frozen.
    """

    seed: int
    classes: tuple[ClassSource, ...]
    args: str
    kwargs: str
    setup: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """A complete Python program that ends with ``model``, ``args`` and ``kwargs``."""
        classes = "\n\n\n".join(map(str, self.classes))
        lines = [f"torch.manual_seed({self.seed})", f"model = {self.classes[-1].name}()"]
        lines += [*self.setup, f"args = {self.args}", f"kwargs = {self.kwargs}"]
        return f"{PREAMBLE}\n\n{classes}\n\n\n" + "\n".join(lines) + "\n"

    def build(self) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        """Return the module and its inputs."""
        scope = run_source(self.source, f"<program {self.seed}>")
        return scope["model"], scope["args"], scope["kwargs"]

    @property
    def length(self) -> int:
        """How many statements all forward functions have."""
        return sum(len(part.statements) for part in self.classes)


def run_source(source: str, name: str) -> dict[str, Any]:
    """Run a program and return its names; its lines are known to tracebacks and to dynamo."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    # Dynamo looks the module of a function up.
    module = types.ModuleType("random_program")
    sys.modules[module.__name__] = module
    exec(compile(source, name, "exec"), module.__dict__)
    return module.__dict__


def random_module(seed: int) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return a random module with positional and keyword inputs, the same for each seed."""
    return random_program(seed).build()


# -- writing -------------------------------------------------------------------------------

CLASH = ("a", "a_b", "b", "submod_0", "submod_1", "add", "linear", "getitem", "p_a_weight",
         "fxp_weight_0", "stage", "x0", "output", "root", "fxp_module_0")  # fmt: skip


@dataclass
class Builder:
    """Writes one class; knows the values that its variables have when it runs on the example."""

    rng: random.Random
    classes: list[ClassSource]
    name: str
    parameters: list[str]
    values: dict[str, Any]
    """By expression: parameters, and variables that were assigned."""
    depth: int = 0
    up: "Builder | None" = None
    members: list[str] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    """Expressions of parameters."""
    buffers: list[str] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)
    """Expressions of layers that can be called again."""
    scope: dict[str, Any] = field(default_factory=dict)
    made: int = 0
    differentiable: bool = True
    """Whether every value must have a backward pass, in spite of what is written in place."""

    def __post_init__(self) -> None:
        exec(PREAMBLE, self.scope)
        self.module = nn.Module()
        self.module.up = [self.up.module if self.up else None]
        self.scope |= {"self": self.module, **self.values}

    def fresh(self, prefix: str = "v") -> str:
        """Return a new name, for a member now and then one that may clash with others."""
        self.made += 1
        if prefix == "m" and self.rng.random() < 0.4:
            name = self.rng.choice(CLASH)
            if not hasattr(self.module, name):
                return name
        return f"{prefix}{self.made}"

    def pick(self, accepts, *, among=None) -> str | None:
        """Return a variable whose value is accepted, a recent one more often."""
        names = [n for n, value in (among or self.values).items() if accepts(value)]
        if not names:
            return None
        return names[-1 - min(int(self.rng.expovariate(0.25)), len(names) - 1)]

    def emit(self, text: str, *targets: str, members: tuple[str, ...] = ()) -> bool:
        """Run a statement that assigns `targets`; keep it if it works and the values are fit."""
        before = (
            set(self.module.__dict__),
            *(set(table) for table in (self.module._parameters, self.module._buffers)),
        )
        modules = set(self.module._modules)
        try:
            for member in members:
                exec(member, self.scope)
            exec(text, self.scope)
            if self.differentiable:
                self.check_backward()
            fit = all(_fit(self.scope[target]) for target in targets)
            fit = fit and all(_fit(self.scope[name]) for name in self.values)
        except Exception:
            fit = False
        if not fit:
            tables = (self.module.__dict__, self.module._parameters, self.module._buffers)
            for table, names in zip(tables, before, strict=True):
                for name in set(table) - names:
                    del table[name]
            for name in set(self.module._modules) - modules:
                del self.module._modules[name]
            return False
        self.members += members
        self.statements.append(text)
        self.values |= {target: self.scope[target] for target in targets}
        for name in self.values:
            # Some are rebound by statements such as a += b.
            self.values[name] = self.scope[name]
        return True

    def check_backward(self) -> None:
        """Raise unless autograd can go back from all values together."""
        names = (*self.values, *self.scope)
        leaves = pytree.tree_leaves([self.scope[n] for n in names if n[0] in "vxyk"])
        roots = [t.sum() for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
        weights = [p for p in self.module.parameters() if p.requires_grad]
        if roots and weights:
            torch.autograd.grad(sum(roots), weights, retain_graph=True, allow_unused=True)

    def finish(self, least: int, most: int) -> ClassSource:
        """Choose what is returned, and register the class."""
        names = list(self.values)
        count = self.rng.randint(least, most)
        results = []
        for _ in range(count):
            name = self.pick(lambda value: True)
            if self.rng.random() < 0.15:
                name = self.rng.choice([*names, *self.buffers, *self.weights])
            results.append(name)
        last = [n for n in names if is_float(self.values[n])]
        # Most differentiable, then latest.
        last.sort(key=lambda n: (self.values[n].requires_grad, names.index(n)))
        results.append(last[-1] if last else "None")
        form = self.rng.choice(["tuple", "tuple", "dict", "list", "pair", "nested"])
        made = ClassSource(
            self.name,
            tuple(self.parameters),
            tuple(self.members),
            tuple(self.statements),
            tuple(results),
            form if len(results) > 1 else "tuple",
        )
        self.classes.append(made)
        return made


def is_float(value: Any) -> bool:
    """Whether `value` is a tensor of real numbers with an element at least."""
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 0


def _fit(value: Any) -> bool:
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            if not 0 < leaf.numel() <= MOST_ELEMENTS:
                return False
            if not bool((leaf.detach().double().abs() < LARGEST).all()):
                return False
        elif isinstance(leaf, (int, float)) and abs(leaf) > LARGEST:
            return False
    return True


INPUTS = (
    ("torch.randn(2, 3, 4)", 4),
    ("torch.randn(2, 4)", 3),
    ("torch.randn(3, 4)", 2),
    ("torch.randn(4)", 1),
    ("torch.randn(2, 3, 4, requires_grad=True)", 3),
    ("torch.randn(4, 2, requires_grad=True)", 1),
    ("torch.randn(2, 3, 4).transpose(0, 1)", 1),
    ("torch.randn(2, 4, dtype=torch.float64)", 1),
    ("torch.randn(2, 4).bfloat16()", 1),
    ("torch.randint(0, 6, (2, 3))", 3),
    ("torch.rand(2, 3) > 0.5", 2),
    ("(torch.randn(2, 4), {'k': torch.randn(2, 4)})", 1),
    ("[torch.randn(2, 3, 4), None]", 1),
    ("Pair(torch.randn(2, 4), torch.randn(3, 4))", 1),
)
OPTIONS = (("None", "torch.randn(2, 3, 4)"), ("None", "None"), ("0.5", "0.25"), ("2", "3"),
           ("True", "False"), ("'add'", "'mul'"), ("None", "torch.rand(2, 3) > 0.5"))  # fmt: skip


def random_program(seed: int) -> Program:
    """Return a random program, the same for each seed."""
    import tests.support.random_layers as random_layers  # noqa: F401  # registers its statements
    from tests.support.random_statements import write_statement

    rng = random.Random(seed)
    expressions, weights = zip(*INPUTS, strict=True)
    args = rng.choices(expressions, weights, k=rng.randint(1, 3))
    if not any("randn(2, 3, 4)" in text or "randn(2, 4)" in text for text in args):
        args.insert(0, "torch.randn(2, 3, 4)")
    parameters = [f"x{n}" for n in range(len(args))]
    options = rng.sample(OPTIONS, rng.randint(0, 2))
    keywords = {}
    for number, (default, given) in enumerate(options):
        parameters.append(f"k{number}={default}")
        if rng.random() < 0.7:
            keywords[f"k{number}"] = given
    rng_state = torch.get_rng_state()
    try:
        torch.manual_seed(seed)
        setup = ["model.train()" if rng.random() < 0.6 else "model.eval()"]
        scope = run_source(PREAMBLE, "<inputs>")
        values = {f"x{n}": eval(text, scope) for n, text in enumerate(args)}
        for number, (default, _) in enumerate(options):
            values[f"k{number}"] = eval(keywords.get(f"k{number}", default), scope)
        classes: list[ClassSource] = []
        builder = Builder(rng, classes, "Model", parameters, values)
        builder.differentiable = rng.random() < 0.85
        builder.module.train("train" in setup[0])
        length, tries = rng.randint(5, 22), 0
        while len(builder.statements) < length and tries < 8 * length:
            write_statement(builder)
            tries += 1
        builder.finish(1, 4)
    finally:
        torch.set_rng_state(rng_state)
    if rng.random() < 0.3:
        setup += [
            f"{text.replace('self', 'model', 1)}.requires_grad_(False)"
            for text in [*builder.weights, *builder.layers]
            if rng.random() < 0.5
        ]
    given = ", ".join(f"{name!r}: {text}" for name, text in keywords.items())
    return Program(seed, tuple(classes), f"({', '.join(args)},)", f"{{{given}}}", tuple(setup))


# -- reducing ------------------------------------------------------------------------------


def shrink(program: Program, fails) -> Program:
    """Return a program from which no statement, member or result can be left out.

    Parameters
    ----------
    program : Program
    fails : callable
        Of a program; whether it still shows the failure. It may raise, which means no.

    Returns
    -------
    Program
        One for which `fails` holds.
    """

    def still_fails(candidate: Program) -> bool:
        try:
            return bool(fails(candidate))
        except Exception:
            return False

    progress = True
    while progress:
        progress = False
        for candidate in _smaller(program):
            if still_fails(candidate):
                program, progress = candidate, True
                break
    return program


def _smaller(program: Program):
    """Yield programs with one thing less, from the end."""
    used = {n.id for c in program.classes for n in ast.walk(ast.parse(str(c)))
            if isinstance(n, ast.Name)}  # fmt: skip
    for part in program.classes[:-1]:
        if part.name not in used:
            yield replace(program, classes=tuple(c for c in program.classes if c is not part))
    for index in reversed(range(len(program.classes))):
        part = program.classes[index]
        for attribute in ("statements", "results", "members"):
            lines = getattr(part, attribute)
            sizes = {max(len(lines) // 2, 1), 1} if attribute == "statements" else {1}
            for size in sorted(sizes, reverse=True):
                for start in reversed(range(0, len(lines), size)):
                    left = lines[:start] + lines[start + size :]
                    if attribute == "results" and not left:
                        continue
                    form = part.form if len(left) > 1 or attribute != "results" else "tuple"
                    smaller = replace(part, **{attribute: left}, form=form)
                    classes = (*program.classes[:index], smaller, *program.classes[index + 1 :])
                    yield replace(program, classes=classes)
    for index in range(len(program.setup)):
        yield replace(program, setup=program.setup[:index] + program.setup[index + 1 :])
