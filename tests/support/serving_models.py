"""Small language models that serve, one of each kind of cache, and how they generate."""

import torch

from solver import PCIE, Interconnect, Link
from solver.model.devices import STAGING_HOST

BATCH, CONTEXT, PROMPT, CHUNKS, WORDS = 3, 40, 9, (5, 4), 97
_SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
_SLIDING = {
    "head_dim": 8,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention"],
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_SETTINGS = {
    "Llama": {},
    "Qwen3": {"head_dim": 8},
    "Mixtral": {"num_local_experts": 4},
    "Gemma3": _SLIDING,
    "GptOss": {**_SLIDING, "num_local_experts": 4, "num_experts_per_tok": 2},
    "DeepseekV3": {
        "num_key_value_heads": 4,
        "moe_intermediate_size": 16,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
    "Qwen3Next": {
        **_EXPERTS,
        "shared_expert_intermediate_size": 16,
        "head_dim": 8,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "OPT": {"ffn_dim": 64, "word_embed_proj_dim": 32, "init_std": 0.2},
    "Mamba": {"state_size": 4},
    "Mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1},
    "FalconH1": {
        "head_dim": 8,
        "mamba_d_ssm": 64,
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_n_groups": 1,
        "mamba_d_state": 8,
    },
}
FAMILIES = ("GPT2", *(family for family in _SETTINGS if family != "Mamba"))
"""Those whose prompts may be given in parts."""


def model_of(family):
    """A model whose tokens differ from one another."""
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if family == "GPT2":
            config = transformers.GPT2Config(
                vocab_size=WORDS,
                n_embd=32,
                n_layer=2,
                n_head=4,
                initializer_range=0.2,
                eos_token_id=None,
                bos_token_id=None,
            )
            return transformers.GPT2LMHeadModel(config).eval()
        stem = "Gemma3Text" if family == "Gemma3" else family
        config = getattr(transformers, f"{stem}Config")(**_SIZES | _SETTINGS[family])
        return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def small():
    """The model and inputs for commands."""
    return model_of("Llama"), (prompt(),)


def experts():
    """The same with a mixture of experts."""
    return model_of("Mixtral"), (prompt(),)


def narrow_llama(layers=4):
    """A Llama whose parts can be weighed by hand; with its tokens, as commands build models."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    return model, (torch.zeros(1, 4, dtype=torch.long),)


def prompt():
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, WORDS, (BATCH, PROMPT), generator=generator)


@torch.no_grad()
def without_cache(model, tokens, count):
    """What the model itself makes of a prompt, reading everything anew for each token."""
    found, logits = [], []
    for _ in range(count):
        logits.append(model(input_ids=tokens, use_cache=False).logits[:, -1:])
        found.append(logits[-1].argmax(-1))
        tokens = torch.cat([tokens, found[-1]], 1)
    return torch.cat(found, 1), torch.cat(logits, 1)


@torch.no_grad()
def with_step(step, tokens, count, chunks=CHUNKS):
    """The same by calls of a step."""
    start, found, logits = 0, [], []
    for chunk in chunks:
        last = step(tokens[:, start : start + chunk], torch.tensor(start))
        start += chunk
    for _ in range(count):
        logits.append(last)
        found.append(last.argmax(-1))
        last = step(found[-1], torch.tensor(start))
        start += 1
    return torch.cat(found, 1), torch.cat(logits, 1)


def slow_to_host(devices):
    """Return links to and from the host that are slower than those between devices."""
    ends = [(STAGING_HOST, device.name) for device in devices]
    pairs = [pair for end in ends for pair in (end, end[::-1])]
    return Interconnect(PCIE.default, dict.fromkeys(pairs, Link(10**9, 100)))
