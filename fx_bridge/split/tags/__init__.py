"""Plans from hand-made tags, and non-tensors moved to the stages of their readers."""

from fx_bridge.split.tags.non_tensors import NonTensorMoves, move_non_tensors
from fx_bridge.split.tags.plans import plan_from_tags, split_by_tags

__all__ = ["NonTensorMoves", "move_non_tensors", "plan_from_tags", "split_by_tags"]
