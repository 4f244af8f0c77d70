"""All small models with random weights, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from experiments.zoo.builders import Configuration
from experiments.zoo.small import (
    adapters,
    caches,
    diffusion,
    flows,
    forces,
    mixed_precision,
    own_code,
    pictures,
    quantised,
)

SMALL_CONFIGURATIONS: Final[Mapping[str, Configuration]] = {
    each.name: each
    for kind in (
        quantised,
        adapters,
        diffusion,
        caches,
        flows,
        forces,
        pictures,
        mixed_precision,
        own_code,
    )
    for each in kind.CONFIGURATIONS
}
