"""The step of a language model that serves: tokens and their position in, logits out.

Keys and values are buffers of the step. A captured graph reads and writes them in place, and each
device of a plan holds those of its layers.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.export import ExportedProgram

from fx_bridge.capture.graph import CapturedGraph
from solver import PartitionError
from solver.model.checks import check_positive

if TYPE_CHECKING:
    from fx_bridge.serving.caches import LayerCache

CACHES: Final = "caches"
"""Name of a step's module list of caches, one module per layer."""


class ServeStep(nn.Module):
    """A causal language model with its caches in buffers; made by `serve_step`.

    ``step(input_ids, start)`` writes the keys and values of `input_ids` at the positions `start`,
    `start` + 1, ... and returns the logits of the last token, of shape ``[batch, 1, words]``.
    `input_ids` has shape ``[batch, tokens]``, and `start` is an integer tensor without dimensions.
    Parameters keep their names in the model. ``caches.3.keys`` is a buffer of layer 3, outside
    the state dict.

    Attributes
    ----------
    batch, context, chunk : int
        Number of sequences, positions of each, and most tokens of a call.
    gives_mask : bool
        True if the model gets a mask without padding, because it would otherwise build one as
        long as the filled part of its cache.
    """

    batch: int
    context: int
    chunk: int
    gives_mask: bool
    caches: nn.ModuleList

    def forward(self, input_ids: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """Return the logits of the last token, and write the caches."""
        from fx_bridge.serving.caches import cache_of

        positions = torch.arange(input_ids.shape[1], device=input_ids.device) + start
        layers: list[LayerCache] = list(self.caches)  # type: ignore[arg-type]
        forward = super().forward  # of the model's own class
        takes = inspect.signature(forward).parameters
        given: dict[str, Any] = {
            "input_ids": input_ids,
            _cache_argument(takes): cache_of(layers, positions, start),
            "use_cache": True,
        }
        if "position_ids" in takes:
            given["position_ids"] = positions.unsqueeze(0)
        if "logits_to_keep" in takes:
            given["logits_to_keep"] = 1
        if self.gives_mask:
            given["attention_mask"] = torch.ones(
                self.batch, self.context, dtype=torch.long, device=input_ids.device
            )
        with _same_kernels():
            logits: torch.Tensor = forward(**given).logits
        return logits if "logits_to_keep" in takes else logits[:, -1:]

    def example(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return example inputs of `tokens` tokens for :func:`fx_bridge.capture`."""
        device = next(self.parameters()).device
        where = torch.device("cpu") if device.type == "meta" else device
        ids = torch.zeros(self.batch, tokens, dtype=torch.long, device=where)
        return ids, torch.zeros((), dtype=torch.long, device=where)


def serve_step(model: nn.Module, batch: int, context: int, chunk: int | None = None) -> ServeStep:
    """Return a step that serves a causal language model of transformers.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A causal language model. The step shares its weights; the model is not changed.
    batch : int
        Sequences that are served together, all at one position.
    context : int
        Most tokens of a sequence, prompt and generated tokens together.
    chunk : int, optional
        Most tokens of a call; the context if left out. A layer with a sliding window keeps the
        positions of its window and those of a call.

    Returns
    -------
    ServeStep
        Step on the device of the model, in evaluation mode.

    Raises
    ------
    PartitionError
        If the model is not a causal language model of transformers, such as a graph, a module with
        caches as inputs, an encoder, or a model with encoder and decoder; or one of its layers has
        an unsupported type of cache.

    Notes
    -----
    Recurrent states are reset where `start` is 0. Some layers of transformers, such as those of
    Mamba, read their states only in calls of one token; see
    :func:`fx_bridge.serving.phases.forgotten_states`.

    Examples
    --------
    >>> import transformers
    >>> from fx_bridge.serving import serve_step
    >>> sizes = {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}
    >>> sizes |= {"vocab_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    >>> config = transformers.LlamaConfig(**sizes)
    >>> step = serve_step(transformers.LlamaForCausalLM(config), batch=3, context=40)
    >>> step(torch.ones(3, 5, dtype=torch.long), torch.tensor(0)).shape
    torch.Size([3, 1, 32])
    >>> step.caches[1].keys.shape
    torch.Size([3, 1, 40, 8])
    """
    check_positive(batch, "batch")
    check_positive(context, "context")
    chunk = context if chunk is None else chunk
    check_positive(chunk, "chunk")
    _check_model(model)
    from fx_bridge.serving.caches import layer_caches

    argument = _cache_argument(inspect.signature(model.forward).parameters)
    caches = layer_caches(model, batch, context, min(chunk, context), argument)
    step = copy.copy(model)
    # Submodules, parameters and buffers are shared with the model, under the same names.
    for table in ("_modules", "_parameters", "_buffers"):
        setattr(step, table, dict(getattr(model, table)))
    step.__class__ = type("ServeStep", (ServeStep, type(model)), {})
    assert isinstance(step, ServeStep)
    step.batch, step.context, step.chunk = batch, context, min(chunk, context)
    step.caches = nn.ModuleList(caches)
    step.gives_mask = False
    step.gives_mask = _needs_mask(step)
    return step.eval()


def _check_model(model: Any) -> None:
    """Raise PartitionError unless `model` is a causal language model with its own caches."""
    name = type(model).__name__
    such = "such as LlamaForCausalLM"
    if isinstance(model, (fx.GraphModule, ExportedProgram, CapturedGraph)):
        raise PartitionError(
            f"{name} is a graph already, of one number of tokens or a symbolic one; give the model "
            "of transformers that it was made from, which is captured for prompts and for tokens"
        )
    if isinstance(getattr(model, "_orig_mod", None), nn.Module):
        raise PartitionError(f"{name} is compiled; give the model that torch.compile was given")
    is_model = isinstance(model, nn.Module) and not isinstance(model, ServeStep)
    takes = inspect.signature(model.forward).parameters if isinstance(model, nn.Module) else {}
    if not is_model or not hasattr(model, "get_output_embeddings"):
        caches = [given for given in takes if given.startswith("past_") or "cache" in given]
        if is_model and caches:
            raise PartitionError(
                f"{name} takes caches as an input, {caches[0]}, which would travel to their stage "
                f"and back in every call; give a language model of transformers, {such}, whose "
                "caches are made buffers"
            )
        raise PartitionError(
            f"{name} is no language model of transformers; give one, {such}, or plan other modules "
            "with partition_module"
        )
    if "decoder_input_ids" in takes:
        raise PartitionError(
            f"{name} has an encoder and a decoder, which run on different inputs; give a model of "
            f"one decoder, {such}, or plan it with partition_module"
        )
    if not model.can_generate():
        raise PartitionError(
            f"{name} makes no tokens; give a model for causal language modelling, {such}, or plan "
            "it with partition_module"
        )
    config = getattr(model, "config", None)
    # GPT-NeoX is configured with is_decoder=False, but its attention is causal.
    is_causal = any(getattr(module, "is_causal", False) is True for module in model.modules())
    is_encoder = getattr(config, "is_decoder", None) is False and not is_causal
    if is_encoder or getattr(config, "use_bidirectional_attention", None) is True:
        remedy = "is_decoder=True" if is_encoder else "use_bidirectional_attention=False"
        raise PartitionError(
            f"{name} is not causal: tokens attend to later ones, so that no cache serves them; "
            f"write {remedy} in its configuration"
        )
    if _cache_argument(takes) not in takes:
        raise PartitionError(
            f"{name} takes neither past_key_values nor cache_params, so that its caches cannot be "
            f"made buffers; give a model that does, {such}"
        )


def _cache_argument(takes: Container[str]) -> str:
    """Return the name of a model's cache argument, which differs in Mamba."""
    return "cache_params" if "cache_params" in takes else "past_key_values"


def _needs_mask(step: ServeStep) -> bool:
    """Return True if a model without a mask reads its position as a Python number.

    Such models build a mask as long as the current position, and a graph for all positions cannot.
    """
    from fx_bridge.serving.caches import run_faked

    if "attention_mask" not in inspect.signature(super(ServeStep, step).forward).parameters:
        return False
    try:
        run_faked(step, *step.example(1))
    except DataDependentOutputException:
        return True
    except Exception:  # the capture reports it in more detail
        return False
    return False


@contextmanager
def _same_kernels() -> Iterator[None]:
    """Make attention use the same kernels in eager runs and under tracing.

    For one token, eager transformers groups the query heads that share keys. Under tracing it does
    not, so the graph would repeat the whole cache at every step. At position 0, eager transformers
    omits the mask, but a graph for all positions needs it.
    """
    attention: Any = importlib.import_module("transformers.integrations.sdpa_attention")
    masks: Any = importlib.import_module("transformers.masking_utils")
    asked = attention.is_torchdynamo_compiling, masks.is_tracing
    attention.is_torchdynamo_compiling = lambda: False
    masks.is_tracing = lambda *_: True
    try:
        yield
    finally:
        attention.is_torchdynamo_compiling, masks.is_tracing = asked
