"""Quantised weights as libraries make them: tensor subclasses that hold other tensors."""

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

aten = torch.ops.aten


class Wrapper(torch.Tensor):
    """Stands for a float32 tensor that is computed from inner ones whenever it is used."""

    parts: tuple[str, ...] = ()

    @staticmethod
    def __new__(cls, *parts):
        lead = parts[0]
        return torch.Tensor._make_wrapper_subclass(
            cls, lead.shape, dtype=torch.float32, device=lead.device
        )

    def __init__(self, *parts):
        for name, part in zip(self.parts, parts, strict=True):
            setattr(self, name, part)

    def __tensor_flatten__(self):
        return list(self.parts), None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(*(inner[name] for name in cls.parts))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        each = {
            aten.detach.default: lambda part: part.detach(),
            aten.clone.default: lambda part: part.clone(),
            aten._to_copy.default: lambda part: part.to(kwargs.get("device"), copy=True),
        }.get(func)
        if each is not None:
            return type(args[0])(*(each(getattr(args[0], name)) for name in args[0].parts))
        args, kwargs = tree_map_only(Wrapper, lambda t: t.value(), (args, kwargs))
        return func(*args, **kwargs)

    def __repr__(self):
        return f"{type(self).__name__}{tuple(self.shape)}"


class Int8(Wrapper):
    """Eight bits an element, and a scale for each row."""

    parts = ("codes", "scale")

    @classmethod
    def of(cls, tensor):
        scale = tensor.abs().amax(1, keepdim=True) / 127
        return cls((tensor / scale).round().to(torch.int8), scale)

    def value(self):
        return self.codes.to(torch.float32) * self.scale


class Coded(Wrapper):
    """The index of each element in a table, which may be that of other tensors too."""

    parts = ("codes", "table")

    def value(self):
        return self.table[self.codes.to(torch.int64)]


class Centred(Wrapper):
    """A wrapper within a wrapper."""

    parts = ("inner", "centre")

    def value(self):
        return self.inner + self.centre


def frozen(tensor):
    return nn.Parameter(tensor, requires_grad=False)


def int8_model():
    """Three linear layers, of which two weights are in eight bits."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16), nn.Linear(16, 4))
    for layer in model[0], model[2]:
        layer.weight = frozen(Int8.of(layer.weight.detach()))
    return model.eval()


def coded_model():
    """Two linear layers whose weights share one table of 256 numbers."""
    torch.manual_seed(0)
    table = torch.randn(256)
    model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False))
    for layer in model:
        layer.weight = frozen(Coded(torch.randint(256, (16, 16)).to(torch.uint8), table))
    return model.eval()


def centred_model():
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU())
    inner = Int8.of(torch.randn(8, 8))
    model[0].weight = frozen(Centred(inner, torch.ones(1)))
    return model.eval()
