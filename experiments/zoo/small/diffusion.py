"""Small models of diffusers, with its own output classes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from experiments.zoo.builders import Configuration, Inputs, from_diffusers, tensors

_TEXT: Final = (1, 8, 32)


def _named(name: str, model: str, inputs: Inputs, **settings: Any) -> Configuration:
    made = from_diffusers(name, model, inputs, dtype="float32", **settings)
    return replace(made, family="small diffusion", device="cpu", trained=True)


_BLOCKS: Final[dict[str, Any]] = {
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "norm_num_groups": 8,
}

CONFIGURATIONS: Final = (
    _named(
        "unet-2d",
        "UNet2DModel",
        tensors({"timestep": (1,)}, sample=(1, 3, 16, 16)),
        sample_size=16,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
        **_BLOCKS,
    ),
    _named(
        "unet-2d-condition",
        "UNet2DConditionModel",
        tensors({"timestep": (1,)}, sample=(1, 4, 16, 16), encoder_hidden_states=_TEXT),
        sample_size=16,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        **_BLOCKS,
    ),
    _named(
        "controlnet",
        "ControlNetModel",
        tensors(
            {"timestep": (1,)},
            sample=(1, 4, 16, 16),
            encoder_hidden_states=_TEXT,
            controlnet_cond=(1, 3, 128, 128),
        ),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        conditioning_embedding_out_channels=(16, 32, 32, 32),
        **_BLOCKS,
    ),
    _named(
        "autoencoder-kl",
        "AutoencoderKL",
        tensors(sample=(1, 3, 32, 32)),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        **_BLOCKS,
    ),
    _named(
        "autoencoder-tiny",
        "AutoencoderTiny",
        tensors(sample=(1, 3, 32, 32)),
        encoder_block_out_channels=(32, 32),
        decoder_block_out_channels=(32, 32),
        num_encoder_blocks=(1, 1),
        num_decoder_blocks=(1, 1),
    ),
    _named(
        "vq-model",
        "VQModel",
        tensors(sample=(1, 3, 32, 32)),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        num_vq_embeddings=16,
        latent_channels=4,
        **_BLOCKS,
    ),
    _named(
        "dit",
        "DiTTransformer2DModel",
        tensors({"timestep": (1,), "class_labels": (1,)}, hidden_states=(1, 4, 8, 8)),
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=2,
        out_channels=8,
        sample_size=8,
        norm_num_groups=4,
        num_embeds_ada_norm=10,
        norm_type="ada_norm_zero",
    ),
    _named(
        "sd3-transformer",
        "SD3Transformer2DModel",
        tensors(
            hidden_states=(1, 4, 8, 8),
            encoder_hidden_states=_TEXT,
            pooled_projections=(1, 64),
            timestep=(1,),
        ),
        sample_size=8,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=32,
        pooled_projection_dim=64,
        pos_embed_max_size=8,
    ),
    _named(
        "flux-transformer",
        "FluxTransformer2DModel",
        tensors(
            hidden_states=(1, 16, 4),
            encoder_hidden_states=_TEXT,
            pooled_projections=(1, 32),
            timestep=(1,),
            img_ids=(16, 3),
            txt_ids=(8, 3),
        ),
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    ),
    _named(
        "prior-transformer",
        "PriorTransformer",
        tensors(
            {"timestep": (1,)},
            hidden_states=(1, 32),
            proj_embedding=(1, 32),
            encoder_hidden_states=(1, 8, 32),
        ),
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=2,
        embedding_dim=32,
        num_embeddings=8,
        additional_embeddings=4,
    ),
)
