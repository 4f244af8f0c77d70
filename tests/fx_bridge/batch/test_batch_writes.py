"""Writes in place, and what else samples that are not all alike: refused, or merged rightly."""

import pytest
import torch
from torch.distributed.pipelining.microbatch import merge_chunks, split_args_kwargs_into_chunks
from torch.nn import functional

from fx_bridge import capture, chunk_specs
from solver import PartitionError
from tests.support.modules import module_with

WIDTH, BATCH = 7, 12


def written(write):
    """The batch after `write` has changed a copy of it."""

    def run(x):
        y = x * 1
        write(y, x)
        return y

    return run


def onto(start, write):
    """What `write` makes of a fresh value."""

    def run(x):
        y = start(x)
        write(y, x)
        return y

    return run


def ones(_):
    return torch.ones(WIDTH)


def column(x):
    return torch.zeros(len(x), 1)


def total(x):
    return x.sum(0)


REFUSED = {
    "row": written(lambda y, _: y[0].zero_()),
    "set row": written(lambda y, _: y.__setitem__(0, 0.0)),
    "last row": written(lambda y, _: y[-1].fill_(1)),
    "first rows": written(lambda y, _: y.__setitem__(slice(0, 3), 0.0)),
    "every other row": written(lambda y, _: y[::2].mul_(2)),
    "shifted": written(lambda y, x: y.__setitem__(slice(1, None), x[:-1])),
    "element": written(lambda y, _: y[0, 1].add_(1)),
    "narrow": written(lambda y, _: y.narrow(0, 0, 6).mul_(2)),
    "view": written(lambda y, _: y.view(-1)[:WIDTH].zero_()),
    "transposed": written(lambda y, _: y.t()[:, 0].zero_()),
    "fresh row": lambda x: x * onto(column, lambda z, _: z[0].fill_(1))(x),
    "diagonal": written(lambda y, _: y.fill_diagonal_(0)),
    "eye": lambda x: torch.eye(len(x), WIDTH) * x,
    "entry of a sum": onto(total, lambda y, _: y[0].fill_(3)),
    "sum into an entry": onto(ones, lambda y, x: y[0].add_(x.sum())),
    "sums into entries": onto(ones, lambda y, x: y[:3].copy_(x[:, :3].sum(0))),
    "padded sum": lambda x: functional.pad(x.sum(0), (1, 1), value=1.0),
}
MERGED = {
    "column": written(lambda y, x: y[:, 2].copy_(x[:, 0])),
    "columns": written(lambda y, _: y.chunk(2, 1)[0].mul_(2)),
    "everything": written(lambda y, _: y.zero_()),
    "all rows": written(lambda y, _: y[:].add_(1)),
    "sum": onto(ones, lambda y, x: y.copy_(x.sum(0))),
    "mean": onto(ones, lambda y, x: y.copy_(x.mean(0))),
    "padded sum": lambda x: functional.pad(x.sum(0), (1, 1)),
    "padded mean": lambda x: functional.pad(x.mean(0), (1, 1), value=1.0),
    "constant": lambda x: x + torch.full((len(x), 1), 2.0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_parts_of_the_batch_would_do_otherwise_is_refused(name):
    captured = capture(module_with(lambda self, x: REFUSED[name](x)), (torch.randn(BATCH, WIDTH),))
    with pytest.raises(PartitionError, match="operator"):
        chunk_specs(captured, 3)


@pytest.mark.parametrize("microbatches", [3, 12])
@pytest.mark.parametrize("name", MERGED)
def test_what_parts_do_alike_is_merged(name, microbatches):
    model, x = module_with(lambda self, x: MERGED[name](x)), torch.randn(BATCH, WIDTH)
    specs = chunk_specs(capture(model, (x,)), microbatches)
    args, _ = split_args_kwargs_into_chunks((x,), {}, microbatches, specs.args, dict(specs.kwargs))
    found = merge_chunks([model(*each) for each in args], specs.outputs)
    torch.testing.assert_close(found, model(x))
