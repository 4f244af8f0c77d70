"""The fewest modules that cover a model, each in one place."""

from __future__ import annotations

from collections.abc import Mapping

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.interop.accelerate_dispatch import tensor_names
from fx_bridge.presentation.modules import enclosing
from solver import PartitionError


class ModuleCover:
    """The fewest modules and tensors that cover a model, each in one place.

    `places` has the device or stage of every operator, `main` is the place of the model's own
    tensors and of those that no operator reads. `entries` maps paths to places, in the execution
    order of modules. A module that owns tensors, but has operators in several places and no inner
    module with operators, raises PartitionError, with the reason `because`.
    """

    def __init__(
        self, captured: CapturedGraph, places: Mapping[str, str], main: str, because: str
    ) -> None:
        self.places = places
        self.main = main
        self.because = because
        self.operators = {"": tuple(places), **captured.modules.operators}
        self.calls = captured.modules.calls
        self.entries: dict[str, str] = {}
        self.tensors: dict[str, list[str]] = {}
        self.within: dict[str, str] = {}
        self.children: dict[str, dict[str, None]] = {}
        for name in tensor_names(captured):
            self.tensors.setdefault(name.rpartition(".")[0], []).append(name)
            for prefix in list(enclosing(name))[:-1]:
                self.within.setdefault(prefix, name)
        for path in (*self.operators, *self.tensors):
            parent = ""
            for prefix in enclosing(path) if path else ():
                self.children.setdefault(parent, {})[prefix] = None
                parent = prefix
        self.place_of_reader: dict[str, str] = {}
        for node in captured.graph.find_nodes(op="get_attr"):
            for user in node.users:
                if user.name in places:
                    self.place_of_reader.setdefault(str(node.target), places[user.name])
        self._cover("")

    def _cover(self, path: str) -> None:
        """Add entries for the module at `path`; PartitionError if the plan divides it."""
        found: dict[str, str] = {}
        for name in self.operators.get(path, ()):
            found.setdefault(self.places[name], name)
        children = self.children.get(path, {})
        if len(found) == 1:
            (self.entries[path],) = found
        elif not found:
            if path in self.within:  # runs nothing itself: its place is that of its readers
                self.entries[path] = self._of_tensor(self.within[path])
        elif path and path not in self.within:
            pass  # such as a Dropout called in many places: it runs where its inputs are
        elif not any(self.operators.get(child) for child in children):
            where = " and ".join(f"{place} ({name!r})" for place, name in found.items())
            raise PartitionError(
                f"the plan divides module {path!r} between {where}, and {self.because}; plan with "
                f"Placement(keep_whole=[{path!r}])"
            )
        else:
            for name in self.tensors.get(path, ()):
                self.entries[name] = self._of_tensor(name) if path else self.main
            for child in children:
                self._cover(child)

    def entry_of(self, operator: str) -> str | None:
        """Return the entry whose module runs an operator, if there is one."""
        for call in reversed(self.calls.get(operator, ())):
            for prefix in reversed(list(enclosing(call.path))):
                if prefix in self.entries:
                    return prefix
        return "" if "" in self.entries else None

    def _of_tensor(self, name: str) -> str:
        return self.place_of_reader.get(name, self.main)
