"""Models in GGUF files as jobs, with the times and bytes of llama.cpp.

A token reads the weights of a unit, as stored, and its cache once; a prompt multiplies by them, in
chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from fractions import Fraction
from functools import cache, cached_property
from typing import Final

from fx_bridge.choices import ExpertsRead
from fx_bridge.costs.device_presets import DEVICE_SPECS
from fx_bridge.costs.device_specs import DeviceSpec
from fx_bridge.costs.expert_reads import read_bytes
from fx_bridge.files.gguf_buffers import (
    CONTEXT_STEP,
    cached_positions,
    compute_buffer_bytes,
    padded_positions,
)
from fx_bridge.files.gguf_layers import CacheRule, GgufModel, HalfLayer
from fx_bridge.interop.ik_llama_cpp import PROGRAM as IK_LLAMA_CPP
from fx_bridge.interop.llama_cpp_experts import OP_OFFLOAD_TOKENS
from fx_bridge.options import Costs
from fx_bridge.serving.gguf_units import units_of
from fx_bridge.serving.request import Request, phase_of
from solver import Device, Interconnect
from solver.model.devices import DEFAULT_DEVICE_CLASS, STAGING_HOST
from solver.model.job import Host, Job
from solver.model.operators import Operator
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import Weight

UBATCH: Final = 512
"""Tokens that llama.cpp computes together (``-ub``) unless told otherwise."""
HOST_CLASS: Final = "cpu"
"""Class of a host that has the embedding alone."""
_FLOAT32_BYTES: Final = 4


class GgufJobs:
    """The jobs of a model for any context.

    The chunk of `request` is the physical batch of the engine, of all sequences; `UBATCH` without
    one. `devices` are in the order of the layers, with their usable memory. `costs` has links,
    speeds by class, and the experts that tokens read. On `host` layers, or parts of them, may run;
    without one the host has the embedding alone.

    With `may_fill`, several devices that have all layers take batches in turns: the engine holds
    inputs four times for this, and does not where a line has ``-ot`` or a layer on the host.
    `engine` is ``"llama.cpp"``, or ``"ik_llama.cpp"``, which copies matrices of the host unless
    told otherwise, those of experts for larger batches, and cannot have first layers on the host if
    the output is the embedding.

    In execution order, `units` are the parts of layers, and `groups` those that are placed
    together, but for matrices that may be elsewhere.
    """

    def __init__(
        self,
        model: GgufModel,
        request: Request,
        devices: Sequence[Device],
        costs: Costs,
        host: Host | None = None,
        *,
        may_fill: bool = True,
        engine: str = "llama.cpp",
    ) -> None:
        self.model, self.request, self.devices = model, request, tuple(devices)
        self.host, self._costs, self._used = host, costs, len(self.devices)
        self.ubatch = request.chunk or UBATCH  # most tokens of a call, of all sequences
        # By the number of tokens of each sequence.
        self.calls = replace(request, chunk=max(self.ubatch // request.batch, 1)).calls
        self._may_fill, self.engine = may_fill, engine
        self._is_ik = engine == IK_LLAMA_CPP
        self._host_class = (host and host.device_class) or HOST_CLASS
        self.units, self.groups, self._kinds = units_of(model)
        self._sizes = tuple(
            (unit.size_bytes, unit.expert_bytes, *unit.matrix_elements) for unit in self.units
        )
        first_of: dict[object, int] = {}
        likes = zip(self._kinds, self._sizes, (unit.cache for unit in self.units), strict=True)
        self._like = [first_of.setdefault(like, at) for at, like in enumerate(likes)]
        """The first unit of the kind of each."""
        self._use_devices()

    def _use_devices(self) -> None:
        """Set speeds of the devices, and whether calls copy matrices."""
        specs = {HOST_CLASS: DEVICE_SPECS[HOST_CLASS], **self._costs.specs}
        classes = {*(device.device_class for device in self.devices), self._host_class}
        self._specs: Mapping[str, DeviceSpec] = {
            name: spec.launched("engine") for name, spec in specs.items() if name in classes
        }
        # To the first device, in calls of many tokens, where multiplying on the host is slower.
        self.copies = self.host is not None and (self._is_ik or self._copies_faster())

    def on(
        self, devices: Sequence[Device], *, may_fill: bool | None = None, used: int | None = None
    ) -> GgufJobs:
        """Return the jobs on other devices, `used` of them; `may_fill` is kept if left out."""
        found = copy(self)
        found.devices, found._used = tuple(devices), used or len(devices)
        found._may_fill = self._may_fill if may_fill is None else may_fill
        found._use_devices()
        return found

    @property
    def longest_context(self) -> int:
        """The context of the training in whole steps, and at least one."""
        return max(self.model.longest_context // CONTEXT_STEP, 1) * CONTEXT_STEP

    @property
    def is_timed(self) -> bool:
        """True if the speeds of all devices are known."""
        return all(device.device_class != DEFAULT_DEVICE_CLASS for device in self.devices)

    @property
    def experts_read(self) -> ExpertsRead | None:
        """Experts that a call reads in the times; None if the model has none."""
        return self._costs.experts_read if self.model.experts else None

    @property
    def has_alike_links(self) -> bool:
        """True if devices differ by memory and class alone."""
        links = self._costs.interconnect.links
        return all(STAGING_HOST in pair for pair in links) and len({*links.values()}) < 2

    @property
    def takes_turns(self) -> bool:
        """True if devices with all layers take batches in turns."""
        return self._may_fill and len(self.devices) > 1

    @property
    def may_cross(self) -> bool:
        """True if matrices of a layer may be on a later device, which their line has to name.

        The names of RPC devices have an address.
        """
        return not self.takes_turns and not any(d.name.startswith("rpc:") for d in self.devices)

    def at(self, context: int) -> Job:
        """Return the job with a context."""
        return Job(
            {phase_of(tokens): self._problem(tokens, context) for tokens in (*self.calls, 1)},
            phase_of(1),
            {phase_of(tokens): runs for tokens, runs in self.calls.items()},
            self.request.generate,
            self.request.batch,
            context,
            host=self._host_at(context),
            units={unit.name: (unit.name,) for unit in self.units},
        )

    def buffer_bytes(self, context: int, *, has_output: bool = False) -> int:
        """Return the bytes of the compute buffer of a device."""
        positions = self.request.batch * padded_positions(context)
        crossing = self.may_cross and self._used > 1
        return self._buffer_bytes(positions, has_output, self.takes_turns, crossing)

    def cache_bytes(self, unit: HalfLayer, context: int) -> int:
        """Return the bytes of the cache of a unit for all sequences."""
        return self._bytes_of_caches(unit.cache, context)

    @cached_property
    def _bytes_of_caches(self) -> Callable[[CacheRule, int], int]:
        @cache
        def found(rule: CacheRule, context: int) -> int:
            cells = cached_positions(context, rule.most_positions, self.ubatch)
            return self.request.batch * (-(-rule.position_bytes * cells // 1) + rule.state_bytes)

        return found

    def group_bytes(self, number: int, context: int, *, is_part: bool = False) -> int:
        """Return the bytes of a group, or of its units that are not movable."""
        group = self.groups[number]
        held = sum(
            self._sizes[at][0] + self.cache_bytes(self.units[at], context)
            for at in group.units[: len(group.units) - is_part * group.movable]
        )
        if number < len(self.groups) - 1:
            return held
        return held + self.buffer_bytes(context, has_output=True) - self.buffer_bytes(context)

    def can_fill(self, context: int) -> bool:
        """Return whether the devices have room for all layers, each whole, and the output.

        Each takes as many as it holds, in order: no other plan has more on the devices before it.
        """
        buffer_bytes = self.buffer_bytes(context)
        rooms = [device.memory_bytes for device in self.devices]
        left = rooms.pop(0)
        for number in range(1, len(self.groups)):
            size_bytes = self.group_bytes(number, context)
            while left is not None and left < buffer_bytes + size_bytes:
                if not rooms:
                    return False
                left = rooms.pop(0)
            left = None if left is None else left - size_bytes
        return True

    def _copies_faster(self) -> bool:
        """Return whether a copy of the matrices of the host makes prompts faster."""
        tokens, context = max(self.calls), self.request.context
        on_host, copied = (
            sum(
                count * self._host_ns(at, tokens, context, copies=copies)
                for at, count in Counter(self._like[1:-1]).items()
            )
            for copies in (False, True)
        )
        return copied < on_host

    @cached_property
    def has_first_on_host(self) -> bool:
        """True if the host may have first layers, and a device the output."""
        is_tied = not {*self.model.embedding.tensors}.isdisjoint(self.model.output.tensors)
        return not (self._is_ik and is_tied)

    @property
    def _inner(self) -> range:
        """Units between the embedding and the output."""
        return range(1, len(self.units) - 1)

    @cached_property
    def _buffer_bytes(self) -> Callable[[int, bool, bool, bool], int]:
        """Bytes of a compute buffer by positions, with the output, turns, and divided layers."""

        @cache
        def found(positions: int, has_output: bool, takes_turns: bool, crossing: bool) -> int:
            return compute_buffer_bytes(
                self.model,
                context=positions,
                ubatch=self.ubatch,
                flash=True,
                has_output=has_output,
                pipelined=takes_turns,
                divided=self.host is not None or crossing,
                crossing=crossing,
            )

        return found

    def _host_at(self, context: int) -> Host:
        """Return the host without the compute buffer of what runs there."""
        if self.host is None:
            return Host(None, self._host_class)
        memory_bytes = self.host.memory_bytes
        if memory_bytes is not None:
            memory_bytes = max(memory_bytes - self.buffer_bytes(context), 1)
        return Host(memory_bytes, self._host_class)

    # -- problems of phases ------------------------------------------------------------------

    def _problem(self, tokens: int, context: int) -> PartitionProblem:
        """Return the problem of a call with some tokens of each sequence."""
        buffer_bytes = self.buffer_bytes(context)
        weights = {unit.name: Weight(unit.size_bytes) for unit in self.units}
        logits_bytes = self.buffer_bytes(context, has_output=True) - buffer_bytes
        weights[self.units[-1].name] = Weight(self.units[-1].size_bytes + logits_bytes)
        for unit in self.units:
            if unit.cache != CacheRule():
                weights[_cache(unit)] = Weight(self.cache_bytes(unit, context))
        operators = []
        times = {at: self._times(at, tokens, context) for at in {*self._like}}
        for at, unit in enumerate(self.units):
            keys = (unit.name, _cache(unit)) if unit.cache != CacheRule() else (unit.name,)
            sent = self.request.batch * tokens * self.model.width * _FLOAT32_BYTES
            operators.append(
                Operator(
                    unit.name,
                    times[self._like[at]],
                    (self.units[at - 1].name,) if at else (),
                    value_bytes=sent,
                    weights=keys,
                    is_output=at == len(self.units) - 1,
                )
            )
        return PartitionProblem(
            tuple(operators),
            tuple(_without(device, buffer_bytes) for device in self.devices),
            interconnect=self._interconnect,
            memory_model="weights",
            weights=weights,
            times_from={name: spec.source for name, spec in self._specs.items()},
        )

    @property
    def _interconnect(self) -> Interconnect:
        given = self._costs.interconnect
        names = {STAGING_HOST, *(device.name for device in self.devices)}
        return replace(given, links={k: v for k, v in given.links.items() if names.issuperset(k)})

    def _times(self, at: int, tokens: int, context: int) -> dict[str, int]:
        """Return the time of a unit by class; that of the host only where it may run."""
        found = {
            device.device_class: self._device_ns(at, tokens, context, device.device_class)
            for device in self.devices
        }
        kind = self._kinds[at]
        is_movable = kind.name in ("dense", "experts") or self.has_first_on_host
        if kind.name == "embedding" or (self.host is not None and is_movable):
            is_copied = self.copies and at in self._inner
            found[self._host_class] = self._host_ns(at, tokens, context, copies=is_copied)
        return found

    def _device_ns(self, at: int, tokens: int, context: int, kind: str) -> int:
        matrices, attention = self._work(at, tokens, context)
        return self._spec_ns(at, kind, matrices[0] + attention[0], matrices[1] + attention[1])

    def _host_ns(self, at: int, tokens: int, context: int, *, copies: bool) -> int:
        """Return the time of a unit on the host, which may copy matrices to the first device."""
        rows: Fraction | int = self.request.batch * tokens
        if self._is_ik and self._kinds[at].name == "experts":
            rows *= self.model.expert_share
        if not copies or rows < OP_OFFLOAD_TOKENS:
            return self._device_ns(at, tokens, context, self._host_class)
        first = self.devices[0]
        link = self._costs.interconnect.link(STAGING_HOST, first.name)
        matrices, attention = self._work(at, tokens, context)
        return (
            link.transfer_ns(self.units[at].size_bytes)
            + self._spec_ns(at, first.device_class, *matrices)
            + self._spec_ns(at, self._host_class, *attention)
        )

    def _spec_ns(self, at: int, kind: str, flops: int, moved: int) -> int:
        spec = self._specs[kind]
        if not self.units[at].tensors or not flops + moved:
            # A block for the prediction of several tokens is not run.
            return 0
        dtype = "float32" if spec.device_type == "cpu" else "float16"
        launches_ns = (self._kinds[at].kernels - 1) * spec.kernel_launch_ns
        return spec.latency_ns(flops, moved, dtype) + launches_ns

    def _work(self, at: int, tokens: int, context: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return operations and moved bytes of a call: by weights, and by the cache."""
        model, unit, kind = self.model, self.units[at], self._kinds[at]
        size_bytes, expert_bytes, dense, experts = self._sizes[at]
        rows = self.request.batch * tokens
        sent = rows * model.width * _FLOAT32_BYTES
        if kind.name == "embedding":
            return (0, sent + rows * (size_bytes // model.vocabulary)), (0, 0)
        if kind.name == "output":
            # Of a prompt the last token alone is told.
            rows = self.request.batch
        flops = 2 * rows * (dense + int(experts * model.expert_share))
        moved = size_bytes - expert_bytes + kind.ends * sent
        if expert_bytes:
            moved += read_bytes(
                expert_bytes, model.experts, model.experts_used, rows, self._costs.experts_read
            )
        if unit.cache == CacheRule():
            return (flops, moved), (0, 0)
        # A token sees the whole context, and those of a prompt half of it on average.
        seen = padded_positions(context if tokens == 1 else -(-self.request.prompt // 2))
        seen = min(seen, unit.cache.most_positions or seen)
        width = model.heads * model.head_width
        cache_bytes = unit.cache.position_bytes * seen + 2 * unit.cache.state_bytes
        products = 2 * rows * seen * width if unit.cache.position_bytes else 0
        return (flops, moved), (products, int(self.request.batch * cache_bytes))


def _cache(unit: HalfLayer) -> str:
    return f"{unit.name}.cache"


def _without(device: Device, size_bytes: int) -> Device:
    if device.memory_bytes is None:
        return device
    return Device(device.name, max(device.memory_bytes - size_bytes, 1), device.device_class)
