"""Stages on devices of one process, with the transfers between them."""

from fx_bridge.placement.model import PlacedModel, place

__all__ = [
    "PlacedModel",
    "place",
]
