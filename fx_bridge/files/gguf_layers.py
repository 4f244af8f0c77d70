"""Layers of a model in a GGUF file, as llama.cpp holds and runs them.

Sizes are those of the tensors as stored; the bytes of caches follow the metadata, by the rules of
``llama-kv-cache.cpp`` and ``llama-memory-recurrent.cpp`` (2026).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final

from fx_bridge.files.gguf_header import GgufHeader
from fx_bridge.files.mapped import StoredTensor, damaged
from fx_bridge.files.stored_types import DEFAULT_CACHE_TYPE, GGML_CACHE_TYPES, cache_type
from solver import PartitionError
from solver.model.checks import check_choice, check_positive
from solver.model.text import shortened, shown

_LAYER: Final = re.compile(r"blk\.(\d+)\.(.+)")
_FEED: Final = ("ffn_up", "ffn_gate", "ffn_down")
"""The matrices of the half of a layer that follows attention; also those of experts."""
_EXPERTS: Final = "_exps."
_INPUTS: Final = ("token_embd", "position_embd", "token_types", "per_layer_token_embd")
"""Tensors with a row for each token, which llama.cpp reads on the host."""
_WINDOW_PERIODS: Final = {
    **{"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "plamo3": 8},
    **dict.fromkeys(("afmoe", "cohere2", "exaone4", "exaone-moe", "llama4", "mellum", "olmo2"), 4),
    **dict.fromkeys(("cohere2moe", "laguna", "smallthinker"), 4),
}
"""Period of the layers without a window, by architecture, where the metadata has no pattern."""
_WHOLE_FIRST: Final = ("cohere2moe", "laguna", "smallthinker")
"""Architectures where the first layer of a period has no window; elsewhere it is the last."""
_WINDOWS: Final = {"gemma2": 4096, "llama4": 8192}
"""Windows by architecture, where the metadata has none."""
_STATE_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class CacheRule:
    """Bytes that the cache of a layer takes.

    `position_bytes` and `entries` are those of one position of one sequence; `state_bytes` those of
    one sequence, at any position. `most_positions` is the length of the window, if there is one.
    """

    position_bytes: Fraction = Fraction()
    entries: int = 0
    most_positions: int | None = None
    state_bytes: int = 0

    @property
    def is_quantised(self) -> bool:
        """True if an entry has less than two bytes."""
        return self.position_bytes < 2 * self.entries


@dataclass(frozen=True, slots=True)
class HalfLayer:
    """One half of a layer, the embedding, or the output: tensors as stored.

    `cache` is that of attention, or of a state.
    """

    name: str
    tensors: tuple[StoredTensor, ...]
    cache: CacheRule = CacheRule()

    @property
    def size_bytes(self) -> int:
        """Bytes of its tensors."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    @property
    def expert_bytes(self) -> int:
        """Bytes of the tensors of experts, of which a token reads some."""
        return sum(t.size_bytes for t in self.tensors if _EXPERTS in t.name)

    @property
    def matrix_elements(self) -> tuple[int, int]:
        """Entries of matrices: those that every token is multiplied by, and those of experts."""
        found = [0, 0]
        for tensor in self.tensors:
            if len(tensor.shape) > 1:
                found[_EXPERTS in tensor.name] += tensor.elements
        return found[0], found[1]


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A language model in a file, of an architecture as llama.cpp calls it.

    `output` is the last norm and the head, whose weights are again those of the embedding if the
    file has none. `layers` are halves: attention or a state, and the feed-forward half, which has
    no tensors where a layer is undivided. Blocks for the prediction of several tokens count as
    layers, without tensors: llama.cpp deals them out with the others, and loads none of them by
    default.

    `experts` and `experts_used` are those of a layer, and those that a token chooses; 0 without.
    `width` is the entries of the residual stream, `vocabulary` the tokens that are told apart,
    `heads` those of attention, and `head_width` the entries of the key and the value of a head. The
    model was trained for `longest_context` positions. `cache_types` are of keys and of values.
    """

    path: str
    architecture: str
    name: str
    embedding: HalfLayer
    layers: tuple[tuple[HalfLayer, HalfLayer], ...]
    output: HalfLayer
    experts: int
    experts_used: int
    width: int
    vocabulary: int
    heads: int
    head_width: int
    longest_context: int
    cache_types: tuple[str, str]
    metadata: Mapping[str, Any]

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors where each is held once, but a head that is the embedding twice."""
        halves = [half for layer in self.layers for half in layer]
        return sum(half.size_bytes for half in (self.embedding, *halves, self.output))

    @property
    def expert_share(self) -> Fraction:
        """Share of the experts that one token reads."""
        return Fraction(self.experts_used, self.experts) if self.experts else Fraction(1)


def gguf_model(
    header: GgufHeader,
    *,
    cache_type_k: str = DEFAULT_CACHE_TYPE,
    cache_type_v: str = DEFAULT_CACHE_TYPE,
) -> GgufModel:
    """Return the layers of the model in a file.

    Entries of keys and values are of types among `GGML_CACHE_TYPES`. Metadata that lack a number
    are refused, and tensors that are no model of layers.
    """
    check_choice(cache_type_k, GGML_CACHE_TYPES, "--cache-type-k")
    check_choice(cache_type_v, GGML_CACHE_TYPES, "--cache-type-v")
    keys = _Keys(header)
    if keys.get("attention.causal") is False:
        raise PartitionError(
            f"{keys.where}: {shown(keys.architecture)} makes no tokens one after the other; give "
            "the file of a language model"
        )
    count = keys.count("block_count")
    if count > len(header.tensors):
        raise damaged(
            keys.where,
            f"{keys.architecture}.block_count is {count} and it has {len(header.tensors)} tensors",
        )
    layers, others = _by_layer(keys, header.tensors, count)
    loaded = count - min(keys.optional("nextn_predict_layers"), count - 1)
    empty = next((number for number, own in enumerate(layers[:loaded]) if not own), None)
    if empty is not None or "token_embd" not in others:
        missing = "token_embd.weight" if empty is None else f"blk.{empty}"
        raise PartitionError(
            f"{keys.where}: it has no tensors {missing}; give the file of a language model, not of "
            "a projector or an adapter"
        )
    embedding = tuple(tensor for name in _INPUTS for tensor in others.pop(name, ()))
    head = tuple(tensor for own in others.values() for tensor in own)
    if "output" not in others:
        head = (*head, *(tensor for tensor in embedding if tensor.name == "token_embd.weight"))
    caches = _Caches(keys, (cache_type_k, cache_type_v))
    has_experts = any(_EXPERTS in tensor.name for own in layers[:loaded] for tensor in own)
    return GgufModel(
        path=header.path,
        architecture=keys.architecture,
        name=str(header.metadata.get("general.name", keys.architecture)),
        embedding=HalfLayer("embedding", embedding),
        layers=tuple(
            _halves(number, own if number < loaded else (), caches)
            for number, own in enumerate(layers)
        ),
        output=HalfLayer("output", head),
        experts=keys.count("expert_count") if has_experts else 0,
        experts_used=keys.count("expert_used_count") if has_experts else 0,
        width=keys.count("embedding_length"),
        vocabulary=embedding[0].shape[-1],
        heads=max(keys.by_layer("attention.head_count", count)),
        head_width=caches.head_width,
        longest_context=keys.count("context_length"),
        cache_types=(cache_type_k, cache_type_v),
        metadata=MappingProxyType(dict(header.metadata)),
    )


def _by_layer(
    keys: _Keys, tensors: Sequence[StoredTensor], count: int
) -> tuple[list[list[StoredTensor]], dict[str, list[StoredTensor]]]:
    """Return the tensors of each layer, and the others by the first part of their names."""
    layers: list[list[StoredTensor]] = [[] for _ in range(count)]
    others: dict[str, list[StoredTensor]] = {}
    for tensor in tensors:
        match = _LAYER.match(tensor.name)
        if match is None:
            others.setdefault(tensor.name.partition(".")[0], []).append(tensor)
        elif int(match[1]) >= count:
            raise damaged(
                keys.where,
                f"tensor {shown(tensor.name)} is of a layer beyond the {count} of "
                f"{keys.architecture}.block_count",
            )
        else:
            layers[int(match[1])].append(tensor)
    return layers, others


def _halves(
    number: int, tensors: Sequence[StoredTensor], caches: _Caches
) -> tuple[HalfLayer, HalfLayer]:
    """Return attention with all norms, and the matrices after it."""
    feed = tuple(t for t in tensors if _part(t).startswith(_FEED))
    rest = tuple(t for t in tensors if not _part(t).startswith(_FEED))
    names = [_part(tensor) for tensor in tensors]
    cache = caches.of(number, names)
    return HalfLayer(f"blk.{number}", rest, cache), HalfLayer(f"blk.{number}.ffn", feed)


def _part(tensor: StoredTensor) -> str:
    return tensor.name.split(".", 2)[2]


class _Keys:
    """Numbers of the metadata, by their names without the architecture."""

    def __init__(self, header: GgufHeader) -> None:
        self.where = shortened(header.path)
        self._metadata = header.metadata
        architecture = header.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise PartitionError(
                f"{self.where}: general.architecture is missing; give the file of a language model"
            )
        self.architecture = architecture

    def get(self, name: str) -> Any:
        return self._metadata.get(f"{self.architecture}.{name}")

    def count(self, name: str) -> int:
        """Return a positive number that has to be there."""
        key = f"{self.architecture}.{name}"
        if key not in self._metadata:
            raise PartitionError(
                f"{self.where}: {shown(key)} is missing; give the file of a language model"
            )
        check_positive(self._metadata[key], f"{self.where}: {shown(key)}")
        return int(self._metadata[key])

    def optional(self, name: str) -> int:
        value = self.get(name)
        return value if isinstance(value, int) and value > 0 else 0

    def by_layer(self, name: str, layers: int) -> tuple[int, ...]:
        """Return a number for each layer: one for all, or an array by layer."""
        value = 0 if self.get(name) is None else self.get(name)
        found = value if isinstance(value, tuple) else (value,) * layers
        key = f"{self.architecture}.{name}"
        if len(found) < layers:
            raise damaged(self.where, f"{key} has {len(found)} numbers for {layers} layers")
        wrong = [item for item in found if not isinstance(item, int) or item < 0]
        if wrong:
            raise damaged(
                self.where, f"{key} has {shown(wrong[0])} in the place of a number from 0 on"
            )
        return found[:layers]


class _Caches:
    def __init__(self, keys: _Keys, cache_types: tuple[str, str]) -> None:
        self._keys = keys
        self._entry_bytes = tuple(cache_type(kind).entry_bytes for kind in cache_types)
        layers = keys.count("block_count")
        heads = keys.by_layer("attention.head_count", layers)
        given = keys.by_layer("attention.head_count_kv", layers)
        self._heads = given if keys.get("attention.head_count_kv") is not None else heads
        default = keys.count("embedding_length") // max(*heads, 1)
        self._lengths = tuple(
            keys.optional(f"attention.{kind}_length") or default for kind in ("key", "value")
        )
        self._window = self._window_length()
        self._windowed = self._with_window(layers)
        # The last layers use the caches of others.
        self._own = layers - keys.optional("attention.shared_kv_layers")

    @property
    def head_width(self) -> int:
        """Entries of the key and the value of a head."""
        return sum(self._lengths)

    def _window_length(self) -> int:
        default = _WINDOWS.get(self._keys.architecture, 0)
        given = self._keys.get("attention.sliding_window")
        return given if isinstance(given, int) and given >= 0 else default

    def _with_window(self, layers: int) -> list[bool]:
        """Return whether each layer sees a window alone."""
        pattern = self._keys.get("attention.sliding_window_pattern")
        if isinstance(pattern, tuple) and len(pattern) >= layers:
            return [bool(item) for item in pattern[:layers]]
        period = pattern if isinstance(pattern, int) else None
        period = period or _WINDOW_PERIODS.get(self._keys.architecture, 0)
        if not self._window or not period:
            # llama.cpp keeps whole caches where it knows no pattern.
            return [False] * layers
        whole = 0 if self._keys.architecture in _WHOLE_FIRST else period - 1
        return [number % period != whole for number in range(layers)]

    def of(self, number: int, names: Sequence[str]) -> CacheRule:
        """Return the rule of a layer with tensors of these names."""
        state_bytes = self._state_bytes(names)
        # Some layers have attention beside a state; matrices of linear attention are joint.
        own = "attn_k." if state_bytes else "attn_"
        if number >= self._own or not any(name.startswith(own) for name in names):
            return CacheRule(state_bytes=state_bytes)
        key_bytes, value_bytes = self._entry_bytes
        latent = self._keys.optional("attention.kv_lora_rank")
        if latent and self._keys.get("attention.key_length_mla") is not None:
            # Keys and values are both made from what is kept.
            entries = latent + self._keys.optional("rope.dimension_count")
            return CacheRule(entries * key_bytes, entries)
        heads, (key, value) = self._heads[number], self._lengths
        is_windowed = self._windowed[number]
        if is_windowed:
            key = self._keys.optional("attention.key_length_swa") or key
            value = self._keys.optional("attention.value_length_swa") or value
        position_bytes = heads * (key * key_bytes + value * value_bytes)
        window = self._window if is_windowed else None
        return CacheRule(position_bytes, heads * (key + value), window, state_bytes)

    def _state_bytes(self, names: Sequence[str]) -> int:
        """Return the bytes of the last inputs that a layer keeps, and of its state."""
        keys = self._keys
        width = keys.count("embedding_length")
        if any(name.startswith("time_mix_") for name in names):
            shifts = keys.optional("token_shift_count") or 2
            return _STATE_BYTES * width * (shifts + keys.count("wkv.head_size"))
        if any(name.startswith("shortconv.") for name in names):
            return _STATE_BYTES * width * (keys.count("shortconv.l_cache") - 1)
        if not any(name.startswith("ssm_") for name in names):
            return 0
        inner, state = keys.count("ssm.inner_size"), keys.count("ssm.state_size")
        groups = keys.optional("ssm.group_count")
        kept = (keys.count("ssm.conv_kernel") - 1) * (inner + 2 * groups * state)
        return _STATE_BYTES * (kept + inner * state)
