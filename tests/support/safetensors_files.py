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


def quantised(kind, parts):
    """Return what makes tensors of shapes: `parts` of linear weights, others in a floating type."""

    def tensors(shapes):
        found = {}
        for name, shape in shapes.items():
            found |= parts(name, shape) if is_linear(name) else {name: (kind, shape)}
        return found

    return tensors


def _awq(name, shape):
    """Of AutoAWQ with 4 bits and groups of 32."""
    (out, into), module = shape, name.removesuffix(".weight")
    return {
        f"{module}.qweight": ("I32", (into // 8, out)),
        f"{module}.qzeros": ("I32", (into // 32, out // 8)),
        f"{module}.scales": ("F16", (into // 32, out)),
    }


def _gptq(name, shape):
    """Of AutoGPTQ with 4 bits and groups of 32."""
    return _awq(name, shape) | {f"{name.removesuffix('.weight')}.g_idx": ("I32", shape[1:])}


def _nf4(name, shape):
    """Of bitsandbytes in 4 bits."""
    count = shape[0] * shape[-1]
    return {
        name: ("U8", (count // 2, 1)),
        f"{name}.absmax": ("F32", (count // 64,)),
        f"{name}.quant_map": ("F32", (16,)),
        f"{name}.quant_state.bitsandbytes__nf4": ("U8", (90,)),
    }


def _int8(name, shape):
    """Of bitsandbytes in 8 bits."""
    return {name: ("I8", shape), f"{name.removesuffix('weight')}SCB": ("F32", shape[:1])}


def _fp8(name, shape):
    """Of DeepSeek and Qwen, with a scale for each block of 128 x 128."""
    scales = tuple(-(-size // 128) for size in shape)
    return {name: ("F8_E4M3", shape), f"{name}_scale_inv": ("F32", scales)}


def _compressed(name, shape):
    """Of compressed-tensors with 4 bits and groups of 32."""
    return {
        f"{name}_packed": ("I32", (shape[0], shape[1] // 8)),
        f"{name}_scale": ("BF16", (shape[0], shape[1] // 32)),
        f"{name}_shape": ("I32", (2,)),
    }


QUANTISED = {
    "gptq": quantised("F16", _gptq),
    "awq": quantised("F16", _awq),
    "bitsandbytes": quantised("BF16", _nf4),
    "bitsandbytes int8": quantised("BF16", _int8),
    "fp8": quantised("BF16", _fp8),
    "compressed-tensors": quantised("BF16", _compressed),
}
