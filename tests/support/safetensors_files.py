"""Folders of Hugging Face as tools of quantisation write them, without weights in them."""

import json
import re
import struct

from fx_bridge.files.safetensors_header import read_safetensors

BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I32": 32, "U8": 8, "I8": 8, "F8_E4M3": 8}
FLOATS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


def header_of(tensors):
    """The entries of tensors given as name: (type, shape), and the bytes of all."""
    entries, at = {}, 0
    for name, (kind, shape) in tensors.items():
        size = BITS[kind] // 8
        for length in shape:
            size *= length
        entries[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return entries, at


def write_safetensors(path, tensors, metadata=None):
    """Write a file whose data takes no space on disk."""
    entries, size = header_of(tensors)
    text = json.dumps({**({"__metadata__": metadata} if metadata else {}), **entries}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + size)


def write_folder(folder, model, tensors, shards=1, **config):
    """Write the configuration of a model, and tensors in some files; their bytes together."""
    folder.mkdir(parents=True, exist_ok=True)
    model.config.architectures = [type(model).__name__]
    settings = {**json.loads(model.config.to_json_string()), **config}
    (folder / "config.json").write_text(json.dumps(settings))
    names, place = list(tensors), {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        own = {name: tensors[name] for name in names[number::shards]}
        write_safetensors(folder / (file if shards > 1 else "model.safetensors"), own)
        place |= dict.fromkeys(own, file)
    if shards > 1:
        index = {"metadata": {}, "weight_map": place}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return header_of(tensors)[1]


def saved_shapes(model, folder):
    """The shapes of tensors as transformers saves them, by name: experts apart, say."""
    model.save_pretrained(folder)
    return {tensor.name: tensor.shape for tensor in read_safetensors(folder / "model.safetensors")}


def plain(shapes, kind):
    """Tensors in a floating type."""
    return {name: (kind, shape) for name, shape in shapes.items()}


def is_linear(name):
    return re.search(r"(_proj|\.w[123])\.weight$", name) is not None


def gptq(shapes):
    """Of AutoGPTQ with 4 bits and groups of 32; AWQ has no ``g_idx``."""
    found = {}
    for name, (_, shape) in plain(shapes, "F16").items():
        if not is_linear(name):
            found[name] = ("F16", shape)
            continue
        (out, into), module = shape, name.removesuffix(".weight")
        found |= {
            f"{module}.qweight": ("I32", (into // 8, out)),
            f"{module}.qzeros": ("I32", (into // 32, out // 8)),
            f"{module}.scales": ("F16", (into // 32, out)),
            f"{module}.g_idx": ("I32", (into,)),
        }
    return found


def awq(shapes):
    """Of AutoAWQ with 4 bits and groups of 32."""
    return {name: of for name, of in gptq(shapes).items() if not name.endswith(".g_idx")}


def nf4(shapes):
    """Of bitsandbytes in 4 bits."""
    found = {}
    for name, (_, shape) in plain(shapes, "BF16").items():
        count = shape[0] * shape[-1]
        found[name] = ("U8", (count // 2, 1)) if is_linear(name) else ("BF16", shape)
        if is_linear(name):
            found |= {
                f"{name}.absmax": ("F32", (count // 64,)),
                f"{name}.quant_map": ("F32", (16,)),
                f"{name}.quant_state.bitsandbytes__nf4": ("U8", (90,)),
            }
    return found


def int8(shapes):
    """Of bitsandbytes in 8 bits."""
    found = {}
    for name, (_, shape) in plain(shapes, "BF16").items():
        found[name] = ("I8" if is_linear(name) else "BF16", shape)
        if is_linear(name):
            found[f"{name.removesuffix('weight')}SCB"] = ("F32", shape[:1])
    return found


def fp8(shapes):
    """Of DeepSeek and Qwen, with a scale for each block of 128 x 128."""
    found = {}
    for name, (_, shape) in plain(shapes, "BF16").items():
        found[name] = ("F8_E4M3" if is_linear(name) else "BF16", shape)
        if is_linear(name):
            found[f"{name}_scale_inv"] = ("F32", tuple(-(-size // 128) for size in shape))
    return found


def compressed(shapes):
    """Of compressed-tensors with 4 bits and groups of 32."""
    found = {}
    for name, (_, shape) in plain(shapes, "BF16").items():
        if not is_linear(name):
            found[name] = ("BF16", shape)
            continue
        found |= {
            f"{name}_packed": ("I32", (shape[0], shape[1] // 8)),
            f"{name}_scale": ("BF16", (shape[0], shape[1] // 32)),
            f"{name}_shape": ("I32", (2,)),
        }
    return found


QUANTISED = {
    "gptq": gptq,
    "awq": awq,
    "bitsandbytes": nf4,
    "bitsandbytes int8": int8,
    "fp8": fp8,
    "compressed-tensors": compressed,
}
