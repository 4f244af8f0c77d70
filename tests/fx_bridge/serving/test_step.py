"""What cannot be served says why, and what to give instead."""

import pytest
import torch
import transformers
from torch import nn

from fx_bridge.capture.graph import capture
from fx_bridge.serving import capture_phases, serve_step
from solver import PartitionError
from tests.support.modules import module_with
from tests.support.serving_models import model_of

BERT = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1}
BERT |= {"num_attention_heads": 2, "intermediate_size": 16}
LLAMA = {**BERT, "num_key_value_heads": 1, "head_dim": 8}


def of(model, config, **settings):
    """Return what makes a model of transformers."""
    return lambda: getattr(transformers, model)(getattr(transformers, config)(**settings))


def exported(symbolic):
    model, ids = model_of("Llama"), torch.ones(1, 4, dtype=torch.long)
    tokens = {1: torch.export.Dim("tokens", min=2, max=16)} if symbolic else None
    shapes = {"input_ids": tokens, "use_cache": None}
    named = {"use_cache": False}
    program = torch.export.export(model, (ids,), named, dynamic_shapes=shapes, strict=False)
    return program if symbolic else program.module()


def captured():
    ids = torch.ones(1, 4, dtype=torch.long)
    return capture(model_of("Llama"), (ids,), {"use_cache": False})


REFUSED = {
    "caches as an input": (
        lambda: module_with(lambda self, input_ids, past_key_values: (input_ids, past_key_values)),
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
    "encoder and decoder": (
        of("T5ForConditionalGeneration", "T5Config", d_model=16, d_kv=8, num_layers=1, num_heads=2),
        "has an encoder and a decoder.* give a model of one decoder",
    ),
    "encoder": (
        of("BertForMaskedLM", "BertConfig", **BERT),
        "BertForMaskedLM makes no tokens; give a model for causal language modelling",
    ),
    "classes instead of words": (
        of("LlamaForSequenceClassification", "LlamaConfig", **LLAMA),
        "LlamaForSequenceClassification makes no tokens",
    ),
    "not causal": (
        of("BertLMHeadModel", "BertConfig", **BERT),
        "is not causal.* write is_decoder=True in its configuration",
    ),
    "both directions": (
        of("Gemma3ForCausalLM", "Gemma3TextConfig", **LLAMA, use_bidirectional_attention=True),
        "is not causal.* write use_bidirectional_attention=False",
    ),
    "values read as numbers": (
        of("JetMoeForCausalLM", "JetMoeConfig", **BERT, kv_channels=8, num_local_experts=2),
        "JetMoeForCausalLM does not run with the StaticCache of transformers: it fails in module "
        ".*; give a model that does",
    ),
    "other caches": (
        of("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", n_embd=16, n_layer=1, n_head=2),
        "takes neither past_key_values nor cache_params, .*; give a model that does",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_served_is_refused_with_a_remedy(kind):
    make, message = REFUSED[kind]
    with pytest.raises(PartitionError, match=message) as raised:
        serve_step(make(), batch=1, context=8)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "make",
    [
        of("BertLMHeadModel", "BertConfig", **BERT, is_decoder=True),
        # Its configuration says that it is no decoder.
        of("GPTNeoXForCausalLM", "GPTNeoXConfig", **BERT),
    ],
    ids=["a decoder of a class of both kinds", "causal in any case"],
)
def test_decoders_are_served(make):
    model = make().eval()
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
    model = of("RecurrentGemmaForCausalLM", "RecurrentGemmaConfig", vocab_size=64, **sizes)()
    graphs = capture_phases(serve_step(model, 1, 16), (8, 1))
    assert len(graphs) == 2 and all(graph.operators for graph in graphs.values())
    states = [getattr(part, "recurrent_states", None) for part in model.modules()]
    assert not any(isinstance(state, torch.Tensor) for state in states)


def test_torch_says_nothing_of_a_model_that_has_no_such_cache(capfd):
    model = of("MptForCausalLM", "MptConfig", d_model=32, n_heads=4, n_layers=2, vocab_size=64)()
    with pytest.raises(PartitionError, match="MptForCausalLM does not run with the StaticCache"):
        serve_step(model, 1, 16)
    assert capfd.readouterr().err == ""
