"""Layers of the ranks of a pipeline of transformers, which by itself divides them evenly.

Its stages replace ``embed_tokens``, ``layers``, ``norm`` and ``lm_head`` of other ranks, and
nothing else of a model: see ``distributed/pipeline_parallel.py`` of transformers 5.23.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Final

from fx_bridge.interop.layer_counts import partition_by_settings
from fx_bridge.interop.stage_layers import LayerNames, StageLayers
from fx_bridge.interop.words import Words
from solver import PartitionError

_PROGRAM: Final = "transformers"
_write_counts, read_ranks = partition_by_settings(_PROGRAM, "pp_size", "layers")


def write_ranks(names: LayerNames, stages: Sequence[StageLayers]) -> Words:
    """Return stages as the layers of each rank; PartitionError for modules of other names."""
    base = names.layers[0].rpartition(".layers.")[0]
    embedding = [name for name in names.embedding if ".rotary_emb" not in name]
    if (
        not base
        or embedding != [f"{base}.embed_tokens"]
        or names.head != (f"{base}.norm", "lm_head")
    ):
        raise PartitionError(
            f"{_PROGRAM} divides embed_tokens, layers, norm and lm_head of a model, and this one "
            f"has {', '.join((*names.embedding, names.layers[0], '...', *names.head))}; hand it "
            "over as a device map"
        )
    return _write_counts(names, stages)


def stages_with_layers(stage: type[Any], layers: Sequence[int]) -> type[Any]:
    """Return a subclass of ``PipelineStage`` whose ranks have given numbers of layers."""
    counts = tuple(layers)

    def layer_range_for_rank(self: Any, rank: int, num_layers: int) -> tuple[int, int]:
        if self.pp_size != len(counts) or num_layers != sum(counts):
            raise PartitionError(
                f"the plan has {sum(counts)} layers on {len(counts)} ranks, and this is a model of "
                f"{num_layers} layers on {self.pp_size}; plan for these"
            )
        first = sum(counts[:rank])
        return first, first + counts[rank]

    return type(stage.__name__, (stage,), {"layer_range_for_rank": layer_range_for_rank})


@contextlib.contextmanager
def layers_by_rank(layers: Sequence[int]) -> Iterator[None]:
    """Give the pipeline stages that transformers makes inside the layers of a plan.

    Parameters
    ----------
    layers : sequence of int
        The ``layers`` of :func:`~fx_bridge.interop.engines.engine_words` for ``"transformers"``.

    Raises
    ------
    PartitionError
        If transformers has no pipeline stages, or the model or the number of ranks is another.

    Examples
    --------
    On each rank, with the words of a plan::

        with layers_by_rank(words["layers"]):
            distributed = DistributedConfig(pp_size=words["pp_size"])
            model = AutoModelForCausalLM.from_pretrained(folder, distributed_config=distributed)
    """
    try:
        module: Any = import_module("transformers.distributed.pipeline_parallel")
    except ImportError:
        raise PartitionError(
            "the installed transformers has no pipeline stages; install transformers>=5.23"
        ) from None
    own = module.PipelineStage
    module.PipelineStage = stages_with_layers(own, layers)
    try:
        yield
    finally:
        module.PipelineStage = own
