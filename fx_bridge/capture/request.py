"""The options of a capture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from fx_bridge.capture.model.messages import describe
from solver import PartitionError
from solver.model.text import shown


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """The options of a capture, as :func:`fx_bridge.capture` takes them."""

    dynamic_shapes: Any
    constants: tuple[str, ...]
    check: bool

    def check_model(self, model: object, known: tuple[type, ...]) -> None:
        """Refuse models of other than `known` classes, and options that a model does not take."""
        if not isinstance(self.check, bool):
            raise PartitionError(f"check is {shown(self.check)}; write True or False")
        if not isinstance(model, known):
            hint = "; give an instance, not the class" if isinstance(model, type) else ""
            raise PartitionError(
                f"cannot capture {describe(model)}: give a torch.nn.Module, a "
                "torch.fx.GraphModule, a torch.export.ExportedProgram or the path of a .pt2 "
                f"file{hint}"
            )
        if isinstance(model, nn.Module) and not isinstance(model, fx.GraphModule):
            return
        kind = "GraphModule" if isinstance(model, fx.GraphModule) else describe(model)
        if self.dynamic_shapes is not None:
            raise PartitionError(
                f"dynamic sizes need the module itself, not a {kind}, whose sizes are as they "
                "are; give the module, or export it with dynamic_shapes yourself"
            )
        for name, is_given in (("constants", self.constants), ("check=True", self.check)):
            if is_given:
                raise PartitionError(
                    f"{name} needs the module itself, not a {kind}, whose graph is as it is; "
                    "give the module, or leave it out"
                )
