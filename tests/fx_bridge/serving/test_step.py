"""What cannot be served says why, and what to give instead."""

import pytest
import torch
import transformers
from torch import nn

from fx_bridge.capture.graph import capture
from fx_bridge.serving import capture_phases, serve_step
from solver import PartitionError
from tests.support.serving_models import model_of

BERT = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
LLAMA = {**BERT, "num_key_value_heads": 1, "head_dim": 8}


class OwnCaches(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, input_ids, past_key_values):
        return self.head(input_ids), past_key_values


def t5():
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=32, **sizes))


def exported(symbolic):
    model, ids = model_of("Llama"), torch.ones(1, 4, dtype=torch.long)
    tokens = {1: torch.export.Dim("tokens", min=2, max=16)} if symbolic else None
    shapes = {"input_ids": tokens, "use_cache": None}
    program = torch.export.export(
        model, (ids,), {"use_cache": False}, dynamic_shapes=shapes, strict=False
    )
    return program if symbolic else program.module()


def captured():
    ids = torch.ones(1, 4, dtype=torch.long)
    return capture(model_of("Llama"), (ids,), {"use_cache": False})


REFUSED = {
    "caches as an input": (
        OwnCaches,
        "takes caches as an input, past_key_values.* give a language",
    ),
    "plain torch": (
        lambda: nn.Sequential(nn.Linear(2, 2)),
        "Sequential is no language model of transformers; give one, .* with partition_module",
    ),
    "no module": (lambda: transformers.LlamaForCausalLM, "type is no language model"),
    "step": (lambda: serve_step(model_of("Llama"), 1, 8), "ServeStep is no language model"),
    "symbolic tokens": (
        lambda: exported(symbolic=True),
        "ExportedProgram is a graph already, of one number of tokens or a symbolic one; give the",
    ),
    "exported": (lambda: exported(symbolic=False), "GraphModule is a graph already"),
    "captured": (captured, "CapturedGraph is a graph already"),
    "compiled": (
        lambda: torch.compile(model_of("Llama")),
        "is compiled; give the model that torch.compile was given",
    ),
    "encoder and decoder": (t5, "has an encoder and a decoder.* give a model of one decoder"),
    "encoder": (
        lambda: transformers.BertForMaskedLM(transformers.BertConfig(**BERT)),
        "BertForMaskedLM makes no tokens; give a model for causal language modelling",
    ),
    "classes instead of words": (
        lambda: transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**LLAMA)),
        "LlamaForSequenceClassification makes no tokens",
    ),
    "not causal": (
        lambda: transformers.BertLMHeadModel(transformers.BertConfig(**BERT)),
        "is not causal.* write is_decoder=True in its configuration",
    ),
    "both directions": (
        lambda: transformers.Gemma3ForCausalLM(
            transformers.Gemma3TextConfig(**LLAMA, use_bidirectional_attention=True)
        ),
        "is not causal.* write use_bidirectional_attention=False",
    ),
    "values read as numbers": (
        lambda: transformers.JetMoeForCausalLM(
            transformers.JetMoeConfig(**BERT, kv_channels=8, num_local_experts=2)
        ),
        "JetMoeForCausalLM does not run with the StaticCache of transformers: it fails in module "
        ".*; give a model that does",
    ),
    "other caches": (
        lambda: transformers.OpenAIGPTLMHeadModel(
            transformers.OpenAIGPTConfig(vocab_size=32, n_embd=16, n_layer=1, n_head=2)
        ),
        "takes neither past_key_values nor cache_params, .*; give a model that does",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_served_is_refused_with_a_remedy(kind):
    make, message = REFUSED[kind]
    with pytest.raises(PartitionError, match=message) as raised:
        serve_step(make(), batch=1, context=8)
    assert "\n" not in str(raised.value)


DECODERS = {
    "a decoder of a class of both kinds": lambda: transformers.BertLMHeadModel(
        transformers.BertConfig(**BERT, is_decoder=True)
    ),
    # Its configuration says that it is no decoder.
    "causal in any case": lambda: transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(**BERT)
    ),
}


@pytest.mark.parametrize("kind", DECODERS)
def test_decoders_are_served(kind):
    model = DECODERS[kind]().eval()
    step = serve_step(model, batch=2, context=8)
    ids = torch.randint(32, (2, 5), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        step(ids[:, :3], torch.tensor(0))
        logits = step(ids[:, 3:], torch.tensor(3))
        expected = model(ids, use_cache=False).logits[:, -1:]
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=1e-6)


def test_a_model_that_keeps_its_states_in_attributes_is_as_it_was_before():
    sizes = {"hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 3, "lru_width": 32}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 1, "attention_window_size": 16}
    config = transformers.RecurrentGemmaConfig(vocab_size=64, **sizes)
    model = transformers.RecurrentGemmaForCausalLM(config)
    graphs = capture_phases(serve_step(model, 1, 16), (8, 1))
    assert [len(graph.operators) > 0 for graph in graphs.values()] == [True, True]
    states = [getattr(part, "recurrent_states", None) for part in model.modules()]
    assert not any(isinstance(state, torch.Tensor) for state in states)


def test_torch_says_nothing_of_a_model_that_has_no_such_cache(capfd):
    config = transformers.MptConfig(d_model=32, n_heads=4, n_layers=2, vocab_size=64)
    with pytest.raises(PartitionError, match="MptForCausalLM does not run with the StaticCache"):
        serve_step(transformers.MptForCausalLM(config), 1, 16)
    assert capfd.readouterr().err == ""
