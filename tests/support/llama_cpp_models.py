"""Language models as llama.cpp loads them: metadata and tensors of sparse GGUF files by name."""

from tests.support.gguf_files import write_gguf

MIXED = {"Q4_K": "Q6_K", "Q3_K": "Q5_K"}
"""Type of every third value and down matrix of files such as Q4_K_M."""


class Model:
    """Metadata and tensors of one model, as they are added."""

    def __init__(self, architecture, kind, layers, width, vocabulary, **keys):
        self.kind, self.layers, self.width, self.vocabulary = kind, layers, width, vocabulary
        self.architecture, self.tensors = architecture, []
        keys = {"block_count": layers, "context_length": 131072, "embedding_length": width,
                "vocab_size": vocabulary, "attention.layer_norm_rms_epsilon": 1e-5,
                **keys}  # fmt: skip
        self.metadata = {
            "general.architecture": architecture,
            "general.name": architecture,
            "tokenizer.ggml.model": "no_vocab",
            **{f"{architecture}.{key}": value for key, value in keys.items()},
        }

    def add(self, name, *shape, kind=None):
        if kind is None:
            kind = self.kind if len(shape) > 1 else "F32"
            layer = name.split(".")[1]
            if kind in MIXED and name.split(".")[-2] in ("attn_v", "ffn_down", "ffn_down_exps"):
                kind = MIXED[kind] if int(layer) % 3 == 0 else kind
        if shape and kind in (*MIXED, *MIXED.values()) and shape[0] % 256:
            kind = "Q8_0"
        self.tensors.append((f"{name}", kind, shape))

    def ends(self, tied=False):
        kind = MIXED.get(self.kind, self.kind)
        self.add("token_embd.weight", self.width, self.vocabulary, kind=kind)
        self.add("output_norm.weight", self.width)
        if not tied:
            self.add("output.weight", self.width, self.vocabulary, kind=kind)

    def matrices(self, at, **shapes):
        for name, shape in shapes.items():
            self.add(f"blk.{at}.{name}.weight", *shape)

    def biases(self, at, **lengths):
        for name, length in lengths.items():
            shape = length if isinstance(length, tuple) else (length,)
            self.add(f"blk.{at}.{name}.bias", *shape, kind="F32")

    def attention(self, at, heads, kv, size, bias=False):
        d = self.width
        self.matrices(
            *(at,), attn_norm=(d,), attn_q=(d, heads * size), attn_k=(d, kv * size),
            attn_v=(d, kv * size), attn_output=(heads * size, d),
        )  # fmt: skip
        if bias:
            self.biases(at, attn_q=heads * size, attn_k=kv * size, attn_v=kv * size)

    def dense(self, at, feed, norm="ffn_norm"):
        d = self.width
        self.matrices(at, **{norm: (d,)}, ffn_gate=(d, feed), ffn_up=(d, feed), ffn_down=(feed, d))

    def experts(self, at, feed, count, shared=0, norm="ffn_norm"):
        d = self.width
        self.add(f"blk.{at}.ffn_gate_inp.weight", d, count, kind="F32")
        self.matrices(
            *(at,), **{norm: (d,)}, ffn_gate_exps=(d, feed, count), ffn_up_exps=(d, feed, count),
            ffn_down_exps=(feed, d, count),
        )  # fmt: skip
        if shared:
            self.matrices(
                at, ffn_gate_shexp=(d, shared), ffn_up_shexp=(d, shared), ffn_down_shexp=(shared, d)
            )


def heads(count, kv, size):
    """Keys of attention."""
    return {"attention.head_count": count, "attention.head_count_kv": kv,
            "attention.key_length": size, "attention.value_length": size,
            "rope.dimension_count": size}  # fmt: skip


def of_experts(count, used, feed):
    return {"expert_count": count, "expert_used_count": used, "expert_feed_forward_length": feed}


def llama(kind, layers=32, width=4096, feed=14336, count=32, kv=8, vocabulary=128256):
    size = width // count
    keys = heads(count, kv, size) | {"feed_forward_length": feed}
    model = Model("llama", kind, layers, width, vocabulary, **keys)
    model.ends()
    for at in range(layers):
        model.attention(at, count, kv, size)
        model.dense(at, feed)
    return model


def qwen2(kind, layers=28, width=3584, feed=18944, count=28, kv=4, vocabulary=152064):
    keys = heads(count, kv, width // count) | {"feed_forward_length": feed}
    model = Model("qwen2", kind, layers, width, vocabulary, **keys)
    model.ends()
    for at in range(layers):
        model.attention(at, count, kv, width // count, bias=True)
        model.dense(at, feed)
    return model


def qwen3moe(kind, layers=48, width=2048, feed=768, count=32, kv=4, vocabulary=151936):
    keys = heads(count, kv, 128) | of_experts(128, 8, feed) | {"feed_forward_length": 6144}
    model = Model("qwen3moe", kind, layers, width, vocabulary, **keys)
    model.ends()
    for at in range(layers):
        model.attention(at, count, kv, 128)
        model.matrices(at, attn_q_norm=(128,), attn_k_norm=(128,))
        model.experts(at, feed, 128)
    return model


def gemma3(kind, layers=48, width=3840, feed=15360, count=16, kv=8, vocabulary=262208):
    keys = {"feed_forward_length": feed, "attention.sliding_window": 1024}
    model = Model("gemma3", kind, layers, width, vocabulary, **heads(count, kv, 256), **keys)
    model.ends(tied=True)
    for at in range(layers):
        model.attention(at, count, kv, 256)
        model.matrices(at, attn_q_norm=(256,), attn_k_norm=(256,))
        model.matrices(at, post_attention_norm=(width,), post_ffw_norm=(width,))
        model.dense(at, feed)
    return model


def deepseek2(kind, layers=27, width=2048, count=16, latent=512, vocabulary=102400, nextn=0):
    keys = {
        "attention.head_count": count, "attention.head_count_kv": 1,
        "attention.kv_lora_rank": latent, "attention.key_length": latent + 64,
        "attention.value_length": latent, "attention.key_length_mla": 192,
        "attention.value_length_mla": 128, "rope.dimension_count": 64,
        "feed_forward_length": 10944, "leading_dense_block_count": 1, "expert_shared_count": 2,
        **of_experts(64, 6, 1408),
    }  # fmt: skip
    model = Model("deepseek2", kind, layers, width, vocabulary, **keys)
    model.ends()
    for at in range(layers):
        model.matrices(
            *(at,), attn_norm=(width,), attn_kv_a_norm=(latent,), attn_q=(width, count * 192),
            attn_kv_a_mqa=(width, latent + 64), attn_output=(count * 128, width),
        )  # fmt: skip
        # Their rows are too short for blocks of 256.
        kind = "Q8_0" if model.kind in (*MIXED, *MIXED.values()) else model.kind
        model.add(f"blk.{at}.attn_k_b.weight", 128, latent, count, kind=kind)
        model.add(f"blk.{at}.attn_v_b.weight", latent, 128, count, kind=kind)
        if at:
            model.experts(at, 1408, 64, shared=2816)
        else:
            model.dense(at, 10944)
    return model


def mamba(kind, layers=64, width=2560, vocabulary=50280):
    inner, state, rank = 2 * width, 16, 160
    keys = {"ssm.conv_kernel": 4, "ssm.inner_size": inner, "ssm.state_size": state,
            "ssm.time_step_rank": rank, "feed_forward_length": 0,
            "attention.head_count": 0}  # fmt: skip
    model = Model("mamba", kind, layers, width, vocabulary, **keys)
    model.ends(tied=True)
    for at in range(layers):
        model.matrices(
            *(at,), attn_norm=(width,), ssm_in=(width, 2 * inner),
            ssm_x=(inner, rank + 2 * state), ssm_out=(inner, width),
        )  # fmt: skip
        model.add(f"blk.{at}.ssm_conv1d.weight", 4, inner, kind="F32")
        model.add(f"blk.{at}.ssm_dt.weight", rank, inner, kind="F32")
        model.biases(at, ssm_conv1d=inner, ssm_dt=inner)
        model.add(f"blk.{at}.ssm_a", state, inner, kind="F32")
        model.add(f"blk.{at}.ssm_d", inner)
    return model


def granitehybrid(kind, layers=40, width=1536, count=12, kv=4, vocabulary=100352):
    inner, state, rank, size = 2 * width, 128, width // 32, 128
    own = [kv if at % 10 == 5 else 0 for at in range(layers)]
    keys = heads(count, own, size) | of_experts(64, 6, 512)
    keys |= {"ssm.conv_kernel": 4, "ssm.inner_size": inner, "ssm.state_size": state,
             "ssm.time_step_rank": rank, "ssm.group_count": 1, "feed_forward_length": 512,
             "expert_shared_feed_forward_length": 1024}  # fmt: skip
    model = Model("granitehybrid", kind, layers, width, vocabulary, **keys)
    model.ends(tied=True)
    wide = inner + 2 * state
    for at in range(layers):
        if own[at]:
            model.attention(at, count, kv, size)
        else:
            model.matrices(
                *(at,), attn_norm=(width,), ssm_in=(width, inner + wide + rank),
                ssm_out=(inner, width),
            )  # fmt: skip
            model.add(f"blk.{at}.ssm_conv1d.weight", 4, wide, kind="F32")
            model.add(f"blk.{at}.ssm_norm.weight", inner, 1, kind="F32")
            model.biases(at, ssm_conv1d=wide, ssm_dt=rank)
            model.add(f"blk.{at}.ssm_a", 1, rank, kind="F32")
            model.add(f"blk.{at}.ssm_d", 1, rank, kind="F32")
        model.experts(at, 512, 64, shared=1024)
    return model


def gpt_oss(kind, layers=24, width=2880, count=64, kv=8, vocabulary=201088):
    keys = heads(count, kv, 64) | of_experts(32, 4, 2880)
    keys |= {"attention.sliding_window": 128, "feed_forward_length": 2880}
    model = Model("gpt-oss", kind, layers, width, vocabulary, **keys)
    model.ends()
    for at in range(layers):
        model.attention(at, count, kv, 64, bias=True)
        model.biases(at, attn_output=width)
        model.add(f"blk.{at}.attn_sinks.weight", count)
        model.experts(at, 2880, 32, norm="post_attention_norm")
        many = (2880, 32)
        model.biases(
            *(at,), ffn_gate_inp=32, ffn_gate_exps=many, ffn_up_exps=many, ffn_down_exps=many
        )
    return model


def glm4moe(kind, layers=20, width=4096, count=96, kv=8, vocabulary=151552):
    """A model whose last block is for the prediction of several tokens."""
    keys = heads(count, kv, 128) | of_experts(128, 8, 1408)
    keys |= {"rope.dimension_count": 64, "feed_forward_length": 10944, "nextn_predict_layers": 1,
             "leading_dense_block_count": 1, "expert_shared_count": 1}  # fmt: skip
    model = Model("glm4moe", kind, layers, width, vocabulary, **keys)
    model.ends()
    for at in range(layers):
        model.attention(at, count, kv, 128, bias=True)
        if at:
            model.experts(at, 1408, 128, shared=1408, norm="post_attention_norm")
            model.biases(at, exp_probs_b=128)
        else:
            model.dense(at, 10944, norm="post_attention_norm")
        if at == layers - 1:
            model.add(f"blk.{at}.nextn.eh_proj.weight", 2 * width, width)
            for name in ("enorm", "hnorm", "shared_head_norm"):
                model.add(f"blk.{at}.nextn.{name}.weight", width)
    return model


def phi3(kind, layers=32, width=3072, feed=8192, count=32, vocabulary=32064):
    """A model with one matrix for queries, keys and values, and one for both inputs after it."""
    keys = heads(count, count, width // count) | {"feed_forward_length": feed}
    model = Model("phi3", kind, layers, width, vocabulary, **keys)
    model.ends()
    for at in range(layers):
        model.matrices(
            *(at,), attn_norm=(width,), attn_qkv=(width, 3 * width), attn_output=(width, width),
            ffn_norm=(width,), ffn_up=(width, 2 * feed), ffn_down=(feed, width),
        )  # fmt: skip
    return model


def gemma2(kind, layers=42, width=3584, feed=14336, count=16, kv=8, vocabulary=256000):
    keys = {"feed_forward_length": feed, "attention.sliding_window": 4096,
            "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}  # fmt: skip
    model = Model("gemma2", kind, layers, width, vocabulary, **heads(count, kv, 256), **keys)
    model.ends(tied=True)
    for at in range(layers):
        model.attention(at, count, kv, 256)
        model.matrices(at, post_attention_norm=(width,), post_ffw_norm=(width,))
        model.dense(at, feed)
    return model


def qwen3next(kind, layers=48, width=2048, feed=512, count=16, kv=2, vocabulary=151936):
    """A model with three layers of linear attention for each of full attention."""
    keys = heads(count, kv, 256) | of_experts(512, 10, feed)
    keys |= {"rope.dimension_count": 64, "expert_shared_feed_forward_length": feed,
             "feed_forward_length": 5120, "full_attention_interval": 4, "ssm.conv_kernel": 4,
             "ssm.inner_size": 4096, "ssm.state_size": 128, "ssm.time_step_rank": 32,
             "ssm.group_count": 16}  # fmt: skip
    model = Model("qwen3next", kind, layers, width, vocabulary, **keys)
    model.ends()
    for at in range(layers):
        if at % 4 == 3:
            model.matrices(
                *(at,), attn_norm=(width,), attn_q=(width, 2 * count * 256),
                attn_k=(width, kv * 256), attn_v=(width, kv * 256),
                attn_output=(count * 256, width), attn_q_norm=(256,), attn_k_norm=(256,),
            )  # fmt: skip
        else:
            model.matrices(
                *(at,), attn_norm=(width,), attn_qkv=(width, 8192), attn_gate=(width, 4096),
                ssm_ba=(width, 64), ssm_norm=(128,), ssm_out=(4096, width),
            )  # fmt: skip
            model.add(f"blk.{at}.ssm_conv1d.weight", 4, 8192, kind="F32")
            model.biases(at, ssm_dt=32)
            model.add(f"blk.{at}.ssm_a", 32)
        model.experts(at, feed, 512, shared=feed, norm="post_attention_norm")
        model.matrices(at, ffn_gate_inp_shexp=(width,))
    return model


MODELS = {
    "llama": llama, "qwen2": qwen2, "qwen3moe": qwen3moe, "gemma3": gemma3,
    "deepseek2": deepseek2, "mamba": mamba, "granitehybrid": granitehybrid, "gpt-oss": gpt_oss,
    "glm4moe": glm4moe, "phi3": phi3, "gemma2": gemma2, "qwen3next": qwen3next,
}  # fmt: skip


def write_model(folder, name, kind, **sizes):
    """Write the file of a model, and return its path."""
    model = MODELS[name](kind, **sizes)
    return write_gguf(folder / f"{name}-{kind}.gguf", model.metadata, model.tensors)
