"""Published model configurations in their real sizes; nothing is downloaded.

Names are those of the authors. Settings that change no size (rotary bases, token ids, dropout) are
left at the library's defaults, and so is every size that is the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from experiments.zoo.builders import (
    Configuration,
    classifier,
    decoder,
    encoder,
    encoder_decoder,
    from_diffusers,
    from_torch,
    from_transformers,
    image,
    image_and_text,
    llama_like,
    tensors,
)

_vision, _speech, _multimodal = (
    partial(from_transformers, family) for family in ("vision", "speech", "multimodal")
)
_LARGE: Final[dict[str, Any]] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
_LARGE_FF: Final[dict[str, Any]] = {**_LARGE, "intermediate_size": 4096}

_DECODERS: Final = (
    decoder("gpt2-small", "GPT2"),
    decoder("gpt2-medium", "GPT2", n_embd=1024, n_layer=24, n_head=16),
    decoder("gpt2-xl", "GPT2", n_embd=1600, n_layer=48, n_head=25),
    decoder("gpt-neo-1.3b", "GPTNeo"),
    decoder("gpt-j-6b", "GPTJ"),
    decoder("gpt-neox-20b", "GPTNeoX"),
    decoder(
        "opt-66b",
        "OPT",
        hidden_size=9216,
        num_hidden_layers=64,
        num_attention_heads=72,
        ffn_dim=36864,
        word_embed_proj_dim=9216,
    ),
    decoder("bloom-176b", "Bloom", vocab_size=250880, hidden_size=14336, n_layer=70, n_head=112),
    decoder("falcon-7b", "Falcon"),
    decoder(
        "falcon-40b",
        "Falcon",
        hidden_size=8192,
        num_hidden_layers=60,
        num_attention_heads=128,
        num_kv_heads=8,
        new_decoder_architecture=True,
    ),
    decoder("mpt-7b", "Mpt", d_model=4096, n_heads=32, n_layers=32, vocab_size=50432),
    llama_like("llama2-7b", "Llama", (32000, 4096, 11008, 32, 32, 32)),
    llama_like("llama3-8b", "Llama", (128256, 4096, 14336, 32, 32, 8)),
    llama_like(
        "llama3-70b",
        "Llama",
        (128256, 8192, 28672, 80, 64, 8),
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    ),
    llama_like("llama3-405b", "Llama", (128256, 16384, 53248, 126, 128, 8)),
    decoder("llama4-scout-text", "Llama4", "Llama4TextConfig"),
    llama_like("mistral-7b", "Mistral", (32000, 4096, 14336, 32, 32, 8)),
    llama_like("mixtral-8x7b", "Mixtral", (32000, 4096, 14336, 32, 32, 8)),
    llama_like("qwen2-7b", "Qwen2", (152064, 3584, 18944, 28, 28, 4)),
    llama_like("qwen3-8b", "Qwen3", (151936, 4096, 12288, 36, 32, 8), head_dim=128),
    llama_like(
        "qwen2-moe-57b",
        "Qwen2Moe",
        (151936, 3584, 18944, 28, 28, 4),
        moe_intermediate_size=2560,
        shared_expert_intermediate_size=20480,
        num_experts=64,
        num_experts_per_tok=8,
    ),
    llama_like(
        "qwen3-moe-30b",
        "Qwen3Moe",
        (151936, 2048, 6144, 48, 32, 4),
        head_dim=128,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
    ),
    decoder("gemma-7b", "Gemma"),
    llama_like("gemma2-27b", "Gemma2", (256000, 4608, 36864, 46, 32, 16), head_dim=128),
    llama_like(
        "gemma3-27b-text",
        "Gemma3",
        (262208, 5376, 21504, 62, 32, 16),
        "Gemma3TextConfig",
        head_dim=128,
    ),
    llama_like("phi-2", "Phi", (51200, 2560, 10240, 32, 32, 32)),
    decoder("phi-3-mini", "Phi3"),
    llama_like("olmo-7b", "Olmo", (50304, 4096, 11008, 32, 32, 32)),
    llama_like("olmoe-7b", "Olmoe", (50304, 2048, 1024, 16, 16, 16)),
    decoder("command-r-35b", "Cohere"),
    llama_like("starcoder2-15b", "Starcoder2", (49152, 6144, 24576, 40, 48, 4)),
    decoder("stablelm-3b", "StableLm"),
    decoder("gpt-oss-120b", "GptOss"),
    decoder("deepseek-v3-671b", "DeepseekV3"),
    decoder("mamba-130m", "Mamba", num_hidden_layers=24),
    decoder(
        "mamba2-2.7b",
        "Mamba2",
        vocab_size=50288,
        hidden_size=2560,
        num_hidden_layers=64,
        num_heads=80,
        n_groups=1,
        tie_word_embeddings=True,
    ),
    decoder("rwkv-4-169m", "Rwkv", hidden_size=768, num_hidden_layers=12),
    decoder("recurrentgemma-2b", "RecurrentGemma", intermediate_size=15360),
)

_ENCODERS: Final = (
    encoder("bert-base", "BertModel"),
    encoder("bert-large", "BertModel", **_LARGE_FF),
    encoder("roberta-large", "RobertaModel", vocab_size=50265, **_LARGE_FF),
    encoder("distilbert-base", "DistilBertModel"),
    encoder("albert-xxlarge", "AlbertModel"),
    encoder("deberta-v2-xlarge", "DebertaV2Model"),
    encoder("electra-large", "ElectraModel", embedding_size=1024, **_LARGE_FF),
    encoder("mpnet-base", "MPNetModel"),
    encoder("modernbert-base", "ModernBertModel"),
    encoder("xlnet-large", "XLNetModel"),
    encoder("bigbird-base", "BigBirdModel"),
    encoder("longformer-base", "LongformerModel", vocab_size=50265),
)

_ENCODER_DECODERS: Final = (
    encoder_decoder(
        "t5-base", "T5ForConditionalGeneration", d_model=768, d_ff=3072, num_layers=12, num_heads=12
    ),
    encoder_decoder(
        "t5-11b",
        "T5ForConditionalGeneration",
        d_model=1024,
        d_kv=128,
        d_ff=65536,
        num_layers=24,
        num_heads=128,
    ),
    encoder_decoder("bart-large", "BartForConditionalGeneration"),
    encoder_decoder(
        "pegasus-large",
        "PegasusForConditionalGeneration",
        vocab_size=96103,
        encoder_layers=16,
        decoder_layers=16,
    ),
)

_VISION: Final = (
    classifier("resnet-50", "ResNet"),
    classifier("vit-b16", "ViT"),
    classifier("vit-l16", "ViT", **_LARGE_FF),
    classifier("deit-base", "DeiT"),
    _vision("dinov2-large", "Dinov2Model", image(518), image_size=518, patch_size=14, **_LARGE),
    classifier("beit-base", "Beit"),
    classifier("swin-tiny", "Swin"),
    classifier("swin-base", "Swin", embed_dim=128, depths=[2, 2, 18, 2], num_heads=[4, 8, 16, 32]),
    classifier("convnext-tiny", "ConvNext"),
    classifier(
        "convnext-large", "ConvNext", hidden_sizes=[192, 384, 768, 1536], depths=[3, 3, 27, 3]
    ),
    classifier("mobilenet-v2", "MobileNetV2", num_labels=1001),
    classifier("efficientnet-b7", "EfficientNet", 600),
    classifier("regnet-y-4gf", "RegNet"),
    _vision("segformer-b0", "SegformerForSemanticSegmentation", image(512), num_labels=150),
    _vision(
        "detr-resnet-50",
        "DetrForObjectDetection",
        tensors({"pixel_mask": (1, 800, 800)}, pixel_values=(1, 3, 800, 800)),
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=("ResNetConfig", {"out_features": ["stage4"]}),
    ),
    _vision(
        "videomae-base",
        "VideoMAEForVideoClassification",
        tensors(pixel_values=(1, 16, 3, 224, 224)),
    ),
    _vision("sam-vit-b", "SamModel", image(1024)),
)

_SPEECH: Final = (
    _speech(
        "whisper-small",
        "WhisperForConditionalGeneration",
        tensors({"decoder_input_ids": (1, 64)}, input_features=(1, 80, 3000)),
        d_model=768,
        encoder_layers=12,
        decoder_layers=12,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
    ),
    _speech("wav2vec2-base", "Wav2Vec2ForCTC", tensors(input_values=(1, 16000))),
    _speech(
        "hubert-large",
        "HubertForCTC",
        tensors(input_values=(1, 16000)),
        feat_extract_norm="layer",
        do_stable_layer_norm=True,
        conv_bias=True,
        **_LARGE_FF,
    ),
    _speech("ast-base", "ASTForAudioClassification", tensors(input_values=(1, 1024, 128))),
    _speech("encodec-24khz", "EncodecModel", tensors(input_values=(1, 1, 24000))),
)

_MULTIMODAL: Final = (
    _multimodal("clip-vit-b32", "CLIPModel", image_and_text(224)),
    _multimodal("siglip-base", "SiglipModel", image_and_text(224)),
    _multimodal("blip-base", "BlipForConditionalGeneration", image_and_text(384)),
    _multimodal(
        "llava-1.5-7b", "LlavaForConditionalGeneration", image_and_text(336, 640), dtype="bfloat16"
    ),
)

_DIFFUSION: Final = (
    from_diffusers(
        "sd1.5-unet",
        "UNet2DConditionModel",
        tensors({"timestep": (1,)}, sample=(1, 4, 64, 64), encoder_hidden_states=(1, 77, 768)),
        sample_size=64,
        cross_attention_dim=768,
    ),
    from_diffusers(
        "sdxl-unet",
        "UNet2DConditionModel",
        tensors(
            {"timestep": (1,)},
            sample=(1, 4, 128, 128),
            encoder_hidden_states=(1, 77, 2048),
            added_cond_kwargs={"text_embeds": (1, 1280), "time_ids": (1, 6)},
        ),
        sample_size=128,
        block_out_channels=(320, 640, 1280),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        transformer_layers_per_block=(1, 2, 10),
        attention_head_dim=(5, 10, 20),
        cross_attention_dim=2048,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
        use_linear_projection=True,
    ),
    # A picture of 1024 x 1024: 64 x 64 packed latents, and 512 tokens of text.
    from_diffusers(
        "flux-12b",
        "FluxTransformer2DModel",
        tensors(
            hidden_states=(1, 4096, 64),
            encoder_hidden_states=(1, 512, 4096),
            pooled_projections=(1, 768),
            timestep=(1,),
            img_ids=(4096, 3),
            txt_ids=(512, 3),
            guidance=(1,),
        ),
        guidance_embeds=True,
    ),
    from_diffusers(
        "sd3-medium",
        "SD3Transformer2DModel",
        tensors(
            hidden_states=(1, 16, 128, 128),
            encoder_hidden_states=(1, 333, 4096),
            pooled_projections=(1, 2048),
            timestep=(1,),
        ),
        num_layers=24,
        num_attention_heads=24,
        caption_projection_dim=1536,
        pos_embed_max_size=192,
    ),
    from_diffusers(
        "dit-xl-2",
        "DiTTransformer2DModel",
        tensors({"timestep": (1,), "class_labels": (1,)}, hidden_states=(1, 4, 32, 32)),
        num_layers=28,
        out_channels=8,
        norm_type="ada_norm_zero",
    ),
)

_PLAIN: Final = (
    from_torch("transformer-base", "transformer"),
    from_torch("lstm-large", "recurrent_language_model"),
    from_torch("vgg-16", "vgg16"),
    from_torch("densenet-121", "densenet121"),
    from_torch("unet-2015", "unet"),
    from_torch("dlrm-criteo", "dlrm"),
)

ALL_CONFIGURATIONS: Final = (
    *_DECODERS,
    *_ENCODERS,
    *_ENCODER_DECODERS,
    *_VISION,
    *_SPEECH,
    *_MULTIMODAL,
    *_DIFFUSION,
    *_PLAIN,
)
CONFIGURATIONS: Final[Mapping[str, Configuration]] = {
    each.name: each for each in ALL_CONFIGURATIONS
}
"""Published configurations by name."""
