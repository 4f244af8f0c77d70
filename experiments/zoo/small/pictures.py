"""Models of pictures and text that read the sizes of pictures from a tensor."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import torch

from experiments.zoo.builders import Configuration, Made, transformers_model

_TEXT: Final[dict[str, Any]] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_ROPE: Final = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
_MARKS: Final = {"image_token_id": 120, "vision_start_token_id": 121, "vision_end_token_id": 122}


def _qwen(stem: str, vision: dict[str, Any], patch_width: int) -> Made:
    """Return a Qwen-VL with a picture of 4 x 4 patches, which become four tokens."""
    settings = {
        "text_config": {**_TEXT, "rope_parameters": _ROPE, "rope_scaling": _ROPE},
        "vision_config": vision,
        "video_token_id": 123,
        **_MARKS,
    }
    model = transformers_model(f"{stem}ForConditionalGeneration", f"{stem}Config", settings)
    marks = [_MARKS["vision_start_token_id"], *[_MARKS["image_token_id"]] * 4]
    tokens = torch.tensor([[1, 2, *marks, _MARKS["vision_end_token_id"], 3, 4]])
    given = {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "mm_token_type_ids": (tokens == _MARKS["image_token_id"]).int(),
        "pixel_values": torch.randn(16, patch_width),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
    }
    return model, (), given


def _one_vision(stem: str, count: int) -> Made:
    """Return a LLaVA with tiled pictures and one picture of 28 x 28 pixels."""
    settings = {
        "text_config": ("LlamaConfig", _TEXT),
        "vision_config": (
            "CLIPVisionConfig",
            {
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 28,
                "patch_size": 14,
            },
        ),
        "image_grid_pinpoints": [[28, 28]],
        "image_token_id": 120,
        "image_token_index": 120,
        "vision_feature_select_strategy": "default",
        "vision_feature_layer": -1,
    }
    if stem == "LlavaOnevision":
        settings["vision_aspect_ratio"] = "anyres_max_9"
    model = transformers_model(f"{stem}ForConditionalGeneration", f"{stem}Config", settings)
    tokens = torch.tensor([[1, 2, *[120] * count, 3, 4]])
    given = {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "pixel_values": torch.randn(1, 2, 3, 28, 28),
        "image_sizes": torch.tensor([[28, 28]]),
    }
    return model, (), given


def _named(name: str, factory: Any, *constants: str) -> Configuration:
    return Configuration(
        name, "picture grid", factory, "transformers", "cpu", constants=constants, trained=True
    )


_READ: Final = ("image_grid_thw", "attention_mask", "mm_token_type_ids")
_VISION: Final = {"depth": 2, "num_heads": 2, "patch_size": 14, "spatial_merge_size": 2}

CONFIGURATIONS: Final = (
    _named(
        "qwen2-vl",
        partial(
            _qwen, "Qwen2VL", {**_VISION, "embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2}, 1176
        ),
        *_READ,
    ),
    _named(
        "qwen2.5-vl",
        partial(
            _qwen,
            "Qwen2_5_VL",
            {
                **_VISION,
                "hidden_size": 32,
                "intermediate_size": 64,
                "out_hidden_size": 32,
                "window_size": 56,
                "fullatt_block_indexes": [1],
            },
            1176,
        ),
        *_READ,
    ),
    _named(
        "qwen3-vl",
        partial(
            _qwen,
            "Qwen3VL",
            {
                **_VISION,
                "hidden_size": 32,
                "intermediate_size": 64,
                "out_hidden_size": 32,
                "num_position_embeddings": 16,
                "deepstack_visual_indexes": [0],
            },
            1176,
        ),
        *_READ,
    ),
    _named("llava-next", partial(_one_vision, "LlavaNext", 10), "image_sizes"),
    _named("llava-onevision", partial(_one_vision, "LlavaOnevision", 10), "image_sizes"),
)
