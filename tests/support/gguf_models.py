"""Small models in GGUF files, drawn at random, and machines for them."""

from fx_bridge.files.gguf_header import read_gguf
from fx_bridge.files.gguf_layers import gguf_model
from fx_bridge.options import Costs
from fx_bridge.serving.gguf_job import GgufJobs
from fx_bridge.serving.request import Request
from solver import Device
from solver.model.job import Host
from tests.support.gguf_files import write_gguf

KINDS = ("Q4_K", "Q6_K", "Q8_0", "F16")
CLASSES = ("rtx-3090", "rtx-3060", "rtx-4060")


def write_small(path, draw, most_layers):
    """Write a model whose layers differ, of which some may have experts or no second half."""
    layers, width = draw.randint(1, most_layers), 256 * draw.randint(1, 4)
    experts = draw.choice((0, 0, 8))
    vocabulary = draw.choice((64, 512))
    keys = {"block_count": layers, "context_length": 256 * draw.randint(1, 40),
            "embedding_length": width, "attention.head_count": 4, "attention.head_count_kv": 2,
            "attention.key_length": 64, "attention.value_length": 64,
            "expert_count": experts, "expert_used_count": min(experts, 2)}  # fmt: skip
    metadata = {"general.architecture": "llama"}
    metadata |= {f"llama.{key}": value for key, value in keys.items()}
    tensors = [("token_embd.weight", "Q6_K", (width, vocabulary)),
               ("output_norm.weight", "F32", (width,)),
               ("output.weight", draw.choice(KINDS), (width, vocabulary))]  # fmt: skip
    for layer in range(layers):
        names = {"attn_q": (width, 256), "attn_k": (width, 128), "attn_v": (width, 128),
                 "attn_output": (256, width)}  # fmt: skip
        feed = 256 * draw.randint(1, 4)
        if experts and draw.random() < 0.8:
            names |= {"ffn_gate_inp": (width, experts), "ffn_down_exps": (feed, width, experts),
                      "ffn_up_exps": (width, feed, experts)}  # fmt: skip
            names |= {"ffn_gate_exps": (width, feed, experts)} if draw.random() < 0.5 else {}
        elif draw.random() < 0.9:
            names |= {"ffn_up": (width, feed), "ffn_down": (feed, width)}
        tensors += [
            (f"blk.{layer}.{name}.weight", draw.choice(KINDS), shape)
            for name, shape in names.items()
        ]
    return write_gguf(path, metadata, tensors)


def small_jobs(path, draw, *, has_host, most_devices=3, engine="llama.cpp"):
    """Return jobs of a small model on devices that have room for a part of it."""
    model = gguf_model(read_gguf(path))
    prompt, chunk = draw.choice((8, 48)), draw.choice((16, 512))
    request = Request(draw.randint(1, 2), 256, prompt, draw.randint(1, 9), chunk)
    count = draw.randint(1, most_devices)
    kinds = [draw.choice(CLASSES) for _ in range(count)]
    from fx_bridge.costs.device_presets import DEVICE_SPECS

    costs = Costs(specs={name: DEVICE_SPECS[name] for name in (*kinds, "ddr5-5600")})
    empty = GgufJobs(model, request, [Device("cuda:0", None, kinds[0])], costs)
    buffer_bytes = empty.buffer_bytes(256, has_output=True)
    total = sum(unit.size_bytes + empty.cache_bytes(unit, 256) for unit in empty.units)
    devices = [
        Device(
            f"cuda:{at}",
            buffer_bytes + int(total * draw.uniform(0.2 if has_host else 0.7, 1.5) / count),
            kind,
        )
        for at, kind in enumerate(kinds)
    ]
    host = None
    if has_host:
        memory_bytes = buffer_bytes + int(total * draw.uniform(0.2, 1.2))
        host = Host(draw.choice((None, memory_bytes)), "ddr5-5600")
    return GgufJobs(model, request, devices, costs, host, engine=engine)
