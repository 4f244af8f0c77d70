"""Caches as buffers, and the transformers cache layers that read and write them.

Every layer of a model has a module with its buffers. Each call of the step builds a transformers
cache whose layers are views of these modules at the positions of the call.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from fx_bridge.capture.model.messages import failure, quiet
from fx_bridge.python_state.restoration import PythonState
from fx_bridge.storages.repeated_calls import RepeatingFakeTensorMode
from solver import PartitionError

_hf: Any = importlib.import_module("transformers.cache_utils")

_LONG: Final = 2**20
"""Positions of a context that is longer than any sliding window."""
_PROBED: Final = torch.bfloat16
_ATTENTION: Final = (_hf.StaticLayer, _hf.StaticSlidingWindowLayer)
_BOTH: Final = (
    _hf.LinearAttentionAndStaticFullAttentionLayer,
    _hf.LinearAttentionAndStaticSlidingWindowAttentionLayer,
)


class LayerCache(nn.Module):
    """State of one layer between steps, as buffers outside the state dict."""

    def __init__(self, buffers: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor, persistent=False)

    def layer(self, positions: torch.Tensor, start: torch.Tensor) -> Any:
        """Return the transformers cache layer at some positions."""
        return _hf.DummyLayer()


class KeyValueCache(LayerCache):
    """Keys and values of attention, of shape ``[batch, heads, positions, width]``.

    `limit` is the most positions that a call of its layer attends to, as with a sliding window. A
    longer sequence keeps the latest `limit` positions, each at its position modulo `limit`.
    """

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(
        self, keys: torch.Tensor, values: torch.Tensor, *, limit: int | None = None
    ) -> None:
        super().__init__({"keys": keys, "values": values})
        self.limit = limit

    def layer(self, positions: torch.Tensor, start: torch.Tensor) -> Any:
        """Return attention at these positions."""
        return _KeyValueLayer(self, positions, start)


class StateCache(LayerCache):
    """Convolution and recurrence states of a recurrent layer."""

    def __init__(
        self, conv_states: Mapping[int, torch.Tensor], recurrent_states: Mapping[int, torch.Tensor]
    ) -> None:
        named = {f"conv_states_{index}": tensor for index, tensor in conv_states.items()}
        named |= {f"recurrent_states_{index}": t for index, t in recurrent_states.items()}
        super().__init__(named)
        self.numbers = tuple(sorted({*conv_states, *recurrent_states}))

    def layer(self, positions: torch.Tensor, start: torch.Tensor) -> Any:
        """Return the states, which are zero at the beginning of a sequence."""
        return _StateLayer(self, start)


class KeyValueStateCache(LayerCache):
    """Keys, values and states of a layer that runs attention beside a recurrence."""

    def __init__(self, attention: KeyValueCache, states: StateCache) -> None:
        super().__init__({})
        self.attention, self.states = attention, states

    def layer(self, positions: torch.Tensor, start: torch.Tensor) -> Any:
        """Return both at these positions."""
        return _KeyValueStateLayer(self, positions, start)


def layer_caches(
    model: Any, batch: int, context: int, chunk: int, argument: str
) -> list[LayerCache]:
    """Return an empty cache for every layer of a model.

    `argument` is the name of the model's argument for its cache, `chunk` the most tokens of a call:
    a layer with a sliding window keeps ``chunk - 1`` positions more than its window. A layer with
    another type of cache is refused, and a model that does not run with a StaticCache.
    """
    try:
        sizes = _probe(model, batch, context, argument)
    except Exception as error:
        raise PartitionError(
            f"{type(model).__name__} does not run with the StaticCache of transformers: it fails "
            f"{failure(error, model)}; give a model that does, such as LlamaForCausalLM"
        ) from error
    like = next(model.parameters())

    def empty(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        dtype = like.dtype if tensor.dtype == _PROBED else tensor.dtype
        return torch.zeros(tuple(shape), dtype=dtype, device=like.device)

    def attention(layer: Any) -> KeyValueCache:
        limit = layer.max_cache_len + chunk - 1 if layer.is_sliding else None
        length = (batch, layer.num_heads, min(context, limit or context))
        keys = empty(layer.keys, (*length, layer.k_head_dim))
        values = empty(layer.values, (*length, layer.v_head_dim))
        return KeyValueCache(keys, values, limit=limit)

    def states(layer: Any) -> StateCache:
        conv, recurrent = (
            {number: empty(t, t.shape) for number, t in of.items() if t is not None}
            for of in (layer.conv_states, layer.recurrent_states)
        )
        return StateCache(conv, recurrent)

    made: list[LayerCache] = []
    for index, layer in enumerate(sizes.layers):
        if type(layer) in _ATTENTION:
            made.append(attention(layer))
        elif type(layer) is _hf.LinearAttentionLayer:
            made.append(states(layer))
        elif type(layer) in _BOTH:
            made.append(KeyValueStateCache(attention(layer), states(layer)))
        elif type(layer) is _hf.DummyLayer:
            made.append(LayerCache({}))
        else:
            raise PartitionError(
                f"layer {index} of {type(model).__name__} has a cache of kind "
                f"{type(layer).__name__}, which cannot be served; give a model whose layers have "
                "attention, sliding windows or recurrent states"
            )
    return made


def cache_of(layers: Sequence[LayerCache], positions: torch.Tensor, start: torch.Tensor) -> Any:
    """Return the transformers cache of a step that begins at position `start`."""
    return _hf.Cache(layers=[layer.layer(positions, start) for layer in layers])


def _probe(model: Any, batch: int, context: int, argument: str) -> Any:
    """Run one token with fake tensors, and return the cache that it filled."""
    # transformers clips windows to the length of the cache, so it must exceed them.
    cache = _hf.StaticCache(config=model.config, max_cache_len=max(context, _LONG))
    ids = torch.zeros(batch, 1, dtype=torch.long)
    run_faked(model, input_ids=ids, use_cache=True, **{argument: cache})
    return cache


def run_faked(model: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Run a model on fake weights and fake tensor arguments.

    The run leaves the state of the model as it was, but not that of its arguments.
    """
    named = dict((*model.named_parameters(), *model.named_buffers()))
    with quiet(), PythonState(model).during(), torch.no_grad(), RepeatingFakeTensorMode() as mode:
        # The fake kernels of experts support bfloat16 only.
        tensors = {
            name: torch.empty(t.shape, dtype=_PROBED if t.is_floating_point() else t.dtype)
            for name, t in named.items()
        }
        args = tuple(mode.from_tensor(arg) for arg in args)
        given = {k: mode.from_tensor(v) if torch.is_tensor(v) else v for k, v in kwargs.items()}
        torch.func.functional_call(model, tensors, args, given)


class _KeyValueLayer(_hf.CacheLayerMixin):  # type: ignore[misc]
    """Attention layer over the buffers of a :class:`KeyValueCache` at some positions."""

    is_compileable = True

    def __init__(self, cache: KeyValueCache, positions: torch.Tensor, start: torch.Tensor) -> None:
        super().__init__()
        self._cache, self._positions, self._start = cache, positions, start
        self.keys, self.values = cache.keys, cache.values
        self.is_sliding = cache.limit is not None
        self._length = int(cache.keys.shape[2])
        self._wraps = cache.limit is not None and self._length == cache.limit
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: the buffers exist already."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        cache, places = self._cache, self._positions
        if self._wraps:
            places = places % self._length
        cache.keys.index_copy_(2, places, key_states)
        cache.values.index_copy_(2, places, value_states)
        return cache.keys, cache.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, Any]:
        """Return the number of slots, and the offset from each slot to its position."""
        if not self._wraps:
            return self._length, 0
        places = torch.arange(self._length, device=self._start.device)
        end = self._start + (query_length - 1)
        position = end - (end - places) % self._length
        # A slot that was never written gets a position after all that a query may read.
        position = torch.where(position < 0, _LONG**2, position)
        return self._length, position - places

    def get_seq_length(self) -> Any:
        return self._start

    def get_max_length(self) -> int:
        return self._length


class _StateLayer(_hf.LinearAttentionLayer):  # type: ignore[misc]
    """Recurrent layer over a :class:`StateCache`, reset at the beginning of a sequence."""

    def __init__(self, cache: StateCache, start: torch.Tensor) -> None:
        super().__init__(number_of_states=len(cache.numbers))
        named = dict(cache.named_buffers())
        resets: dict[str, Callable[[], torch.Tensor]] = {}
        for name, tensor in named.items():
            resets[name] = _Reset(tensor, start)
        for number in cache.numbers:
            self.has_previous_state[number] = True
            self.is_conv_states_initialized[number] = f"conv_states_{number}" in named
            self.is_recurrent_states_initialized[number] = f"recurrent_states_{number}" in named
            if (key := f"conv_states_{number}") in named:
                self.conv_kernel_size[number] = int(named[key].shape[-1])
        self.conv_states = _Lazy({n: resets.get(f"conv_states_{n}") for n in cache.numbers})
        self.recurrent_states = _Lazy(
            {n: resets.get(f"recurrent_states_{n}") for n in cache.numbers}
        )


class _KeyValueStateLayer(_StateLayer, _KeyValueLayer):
    """Layer over both parts of a :class:`KeyValueStateCache`."""

    def __init__(
        self, cache: KeyValueStateCache, positions: torch.Tensor, start: torch.Tensor
    ) -> None:
        _KeyValueLayer.__init__(self, cache.attention, positions, start)
        _StateLayer.__init__(self, cache.states, start)


class _Reset:
    """A state, set to zero on its first read at the beginning of a sequence."""

    def __init__(self, state: torch.Tensor, start: torch.Tensor) -> None:
        self._state, self._start, self._is_done = state, start, False

    def __call__(self) -> torch.Tensor:
        if not self._is_done:
            self._is_done = True
            self._state.mul_((self._start > 0).to(self._state.dtype))
        return self._state


class _Lazy(dict[int, Any]):
    """A mapping whose values are computed on access, within the layer that reads them."""

    def __getitem__(self, number: int) -> Any:
        made = super().__getitem__(number)
        return None if made is None else made()
