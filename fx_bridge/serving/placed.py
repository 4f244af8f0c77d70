"""A step on its devices, and generation with it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.placement.checks import checked_stages
from fx_bridge.placement.model import PlacedModel, place_all
from fx_bridge.serving.phases import forgets, forgotten_states
from fx_bridge.split.by_plan import split_by_plan
from solver import PartitionError, PartitionPlan


class PlacedStep:
    """A step whose stages are on their devices; called like the step.

    Parameters
    ----------
    models : mapping of int to PlacedModel
        Models by their number of tokens per call. They share weights and caches.
    context : int
        Positions of a sequence.
    forgotten : mapping of int to str
        Result of :func:`fx_bridge.serving.phases.forgotten_states`. Calls of these numbers of
        tokens are only valid at the beginning of a sequence.
    """

    def __init__(
        self, models: Mapping[int, PlacedModel], context: int, forgotten: Mapping[int, str]
    ) -> None:
        self.models, self.context, self._forgotten = dict(models), context, dict(forgotten)

    def __call__(self, input_ids: torch.Tensor, start: torch.Tensor | int) -> torch.Tensor:
        """Return the logits of the last token, of shape ``[batch, 1, words]``.

        Parameters
        ----------
        input_ids : torch.Tensor
            Tokens, of shape ``[batch, tokens]``.
        start : torch.Tensor or int
            Position of the first token.

        Raises
        ------
        PartitionError
            If no graph was captured for this number of tokens, they exceed the context, or the
            graph does not read the state before them.
        """
        count, first = input_ids.shape[1], int(start)
        if count not in self.models:
            known = ", ".join(map(str, sorted(self.models)))
            raise PartitionError(
                f"no graph takes {count} tokens at once; give {known}, or plan a request whose "
                "chunks have this size"
            )
        if first < 0 or first + count > self.context:
            raise PartitionError(
                f"positions {first} to {first + count - 1} are not all within the context of "
                f"{self.context}; plan with a larger one"
            )
        if first and count in self._forgotten:
            raise forgets(count, self._forgotten[count])
        position = torch.tensor(first, device=input_ids.device)
        logits: torch.Tensor = self.models[count](input_ids, position)
        return logits

    @torch.no_grad()
    def generate(self, input_ids: torch.Tensor, tokens: int) -> torch.Tensor:
        """Return the tokens after a prompt by greedy decoding.

        Parameters
        ----------
        input_ids : torch.Tensor
            Prompts of equal length, of shape ``[batch, prompt]``, read in the largest chunks that
            have a graph.
        tokens : int
            Number of tokens to generate.

        Returns
        -------
        torch.Tensor
            Generated tokens, of shape ``[batch, tokens]``.
        """
        start, logits = 0, None
        while start < input_ids.shape[1]:
            left = input_ids.shape[1] - start
            count = max(size for size in self.models if size <= left)
            logits = self(input_ids[:, start : start + count], start)
            start += count
        if logits is None:
            raise PartitionError("the prompt is empty; give at least one token")
        found: list[torch.Tensor] = []
        for _ in range(tokens):
            found.append(logits.argmax(-1).to(input_ids.device))
            if len(found) < tokens:
                logits = self(found[-1], start)
                start += 1
        return torch.cat(found, 1) if found else input_ids[:, :0]


def place_step(
    graphs: Mapping[int, CapturedGraph],
    plan: PartitionPlan,
    devices: str | torch.device | Mapping[str, str | torch.device] | None = None,
    *,
    context: int,
    slots: int = 2,
) -> PlacedStep:
    """Put the stages of all graphs of a step on their devices.

    `graphs` are of :func:`fx_bridge.serving.phases.capture_phases`, and `plan` is of the operators
    of them all. A stage with a streamed operator is streamed; caches stay on their devices. A
    sequence of the step has `context` positions. `devices`, in which a mapping may include unused
    ones, and `slots` are as in :func:`fx_bridge.placement.model.place`. A plan that leaves an
    operator out is refused, and a device that is not on this machine.
    """
    splits, streamed = [], set[str]()
    for captured in graphs.values():
        own = part_of(captured, plan)
        splits.append(split_by_plan(captured, own))
        names = list(checked_stages(splits[-1]))
        streamed |= {names[own.stage_index[operator]] for operator in own.mode_of}
    if isinstance(devices, Mapping):
        devices = {name: where for name, where in devices.items() if name in plan.device_order}
    placed = place_all(splits, devices, tied_weights="copy", streamed=streamed, slots=slots)
    models = dict(zip(graphs, placed, strict=True))
    return PlacedStep(models, context, forgotten_states(graphs))


def part_of(captured: CapturedGraph, plan: PartitionPlan) -> PartitionPlan:
    """Return a plan restricted to the operators of one graph."""
    names = [node.name for node in captured.operators]
    if missing := [name for name in names if name not in plan.assignment]:
        raise PartitionError(f"the plan has no device for operator {missing[0]!r}; plan all graphs")
    return plan.restricted(names)
