"""Random models and lines for the comparison with llama.cpp."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from tests.support.llama_cpp_models import MODELS

ENDPOINTS = ("127.0.0.1:50052", "127.0.0.1:50053")
"""Addresses of servers in recorded lines."""
_CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
_KINDS = ("Q8_0", "Q4_K", "Q3_K", "F16")
_FIXED_LAYERS = {"deepseek2": 27}
"""Layers of models with other tensors if they have another number."""


def kind_of(rng: random.Random, name: str) -> str:
    return "MXFP4" if name == "gpt-oss" else rng.choice(_KINDS)


def byte_cases(rng: random.Random, count: int) -> Iterator[dict[str, Any]]:
    """Yield models of real sizes, and lines for them."""
    for at in range(count):
        name = [*MODELS][at % len(MODELS)]
        kind = kind_of(rng, name)
        layers = MODELS[name](kind).layers
        mode = rng.choice(("one", "two", "two", "partial"))
        items = layers + 1 if mode != "partial" else rng.randint(2, layers)
        first = rng.randint(1, items - 1)
        words = ["-c", rng.choice(_CONTEXTS), "-ub", rng.choice((256, 512, 512, 512, 1024))]
        words += ["-fa", "off" if rng.random() < 0.2 else "on", "-ngl", items]
        words += [] if mode == "one" else ["-ts", f"{first},{items - first}"]
        cache = "f16" if "off" in words or rng.random() < 0.7 else "q8_0"
        words += ["-ctk", cache, "-ctv", cache]
        yield {"model": name, "kind": kind, "words": words, "devices": 1 + (mode != "one")}


def word_cases(rng: random.Random, count: int) -> Iterator[dict[str, Any]]:
    """Yield models with any number of layers, and lines such as people write."""
    for _ in range(count):
        name = rng.choice([*MODELS])
        layers = _FIXED_LAYERS.get(name, rng.randint(2, 40))
        devices, words = _device_words(rng, layers)
        for option in rng.sample(("-ncmoe", "-cmoe", "-ncffn", "-ot"), rng.choice((0, 1, 1, 2))):
            words.append(option)
            if option == "-ot":
                words.append(_overrides(rng, layers, devices))
            elif option != "-cmoe":
                words.append(str(rng.randint(0, layers + 2)))
        yield {"model": name, "kind": kind_of(rng, name), "layers": layers, "words": words}


def _device_words(rng: random.Random, layers: int) -> tuple[list[int], list[str]]:
    """Return the servers in use, and the options about devices."""
    shares = rng.choice(
        (
            f"{rng.randint(0, 9)}/{rng.randint(1, 9)}",
            f"{rng.random():.3f},{rng.random():.3f}",
            f"{rng.randint(1, 40)},{rng.randint(0, 40)}",
        )
    )
    whole = (layers + 1, 99, "all", "auto", "-1")
    count = rng.choice((rng.choice(whole), rng.randint(0, layers + 1), 0, 1, layers))
    words = ["-ngl", str(count)]
    how = rng.random()
    if how < 0.1:
        return [1], ["-dev", "RPC1", *words]
    if how < 0.2:
        main = rng.randint(0, 1)
        return [main], ["-sm", "none", "-mg", str(main), *words]
    order = ["-dev", "RPC1,RPC0"] if how < 0.4 else []
    return [0, 1], [*order, "-ts", shares, *words]


def _overrides(rng: random.Random, layers: int, devices: Sequence[int]) -> str:
    one, two = (rng.randint(0, layers - 1) for _ in range(2))
    texts = (
        *("exps", "shexp", "attn", "ffn_gate_inp", "token_embd", "output", "norm", "ssm_in"),
        *(rf"blk\.({one}|{two})\.ffn", r"blk\.[0-9]\.", r"\.ffn_(up|down).*", r"blk\.(?!0)"),
    )
    places = ["CPU", "CPU", *(f"RPC0[{ENDPOINTS[device]}]" for device in devices)]
    return ",".join(f"{rng.choice(texts)}={rng.choice(places)}" for _ in range(rng.randint(1, 3)))


def placements(rng: random.Random, layers: int, able: Sequence[int]) -> tuple[list[str], str, set]:
    """Return a device of each layer, that of the output, and layers with a half on the host."""
    host = rng.choice((0, 0, rng.randint(0, layers)))
    first = rng.randint(host, layers)
    order = rng.choice((("rpc:0", "rpc:1"), ("rpc:1", "rpc:0")))
    places = ["cpu:0"] * host + [order[0]] * (first - host) + [order[1]] * (layers - first)
    output = "cpu:0" if host == layers and rng.random() < 0.5 else order[1]
    on_host = {at for at in able if at >= host and rng.random() < rng.choice((0, 0.5, 1))}
    return places, output, on_host
