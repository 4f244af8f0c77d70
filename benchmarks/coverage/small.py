"""Small models with random weights, of kinds that capture finds hard."""

from dataclasses import dataclass
from functools import partial

from experiments.zoo.builders import Configuration


@dataclass(frozen=True)
class Small(Configuration):
    """A model that can be run and compared.

    Attributes
    ----------
    constants : tuple of str
        Inputs captured as constants.
    trained : bool
        Compare gradients, too.
    autocast : {"", "call", "capture and call"}
        Steps under ``torch.autocast`` in bfloat16.
    """

    device: str = "cpu"
    constants: tuple[str, ...] = ()
    trained: bool = False
    autocast: str = ""


def named(family, package=None, **common):
    """Return a function that names a model of a family; its arguments are for its factory."""

    def name(name, factory, *args, **more):
        made = partial(factory, *args) if args else factory
        return Small(name, family, made, package, **{**common, **more})

    return name
