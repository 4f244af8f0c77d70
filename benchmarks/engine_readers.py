"""The code of engines that reads words, asked in a process of its own by `engines.py`.

Reads cases from standard input and prints the layers of each stage: their numbers, -1 for the
embedding and -2 for norm and head. Packages that an engine imports beside its reader and that are
not installed are replaced by stand-ins.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from torch import nn

FOLDER = Path(sys.argv[2])
WIDTH = 4


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of packages that are not there."""

    def __init__(self, *packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return mock.MagicMock(__path__=[], __spec__=spec, __name__=spec.name)

    def exec_module(self, module):
        pass


def loaded(file, *absent):
    """The module of a file of the engine."""
    sys.meta_path.insert(0, StandIns(*absent))
    spec = importlib.util.spec_from_file_location("reader", FOLDER / file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["reader"] = module
    spec.loader.exec_module(module)
    return module


def with_ends(ranges):
    """Ranges of layers, with the embedding on the first stage and the head on the last."""
    stages = [list(range(*each)) for each in ranges]
    stages[0].insert(0, -1)
    stages[-1].append(-2)
    return stages


def by_variable(module, case):
    variables = dict(word.split("=", 1) for word in case["words"] if "=" in word)
    with mock.patch.dict(os.environ, variables):
        size = int(case["words"][-1])
        ranks = [module.get_pp_indices(case["layers"], rank, size) for rank in range(size)]
    return with_ends(ranks)


def vllm():
    module = loaded("vllm/distributed/utils.py")
    return lambda case: by_variable(module, case)


def sglang():
    module = loaded("sglang/srt/distributed/utils.py", "sglang")
    return lambda case: by_variable(module, case)


def megatron():
    module = loaded("megatron/core/transformer/pipeline_parallel_layer_layout.py")
    kinds = module.LayerType

    def read(case):
        words = case["words"]
        if isinstance(words, dict):
            layout = words["pipeline_model_parallel_layout"]
            size = words["pipeline_model_parallel_size"]
        else:
            options = dict(zip(words[-4::2], words[-3::2], strict=True))
            layout = options["--pipeline-model-parallel-layout"]
            size = int(options["--pipeline-model-parallel-size"])
        found = module.PipelineParallelLayerLayout(layout, size)
        found.validate_layer_layout(case["layers"], 0)
        chunks = found.virtual_pipeline_model_parallel_size
        module.parallel_state.set_virtual_pipeline_model_parallel_world_size(chunks)
        stages = []
        for chunk in range(chunks):
            for rank in range(size):
                kept = found.layout[rank][chunk]
                ids = found.get_layer_id_list(vp_stage=chunk, pp_rank=rank)
                ends = [[-1] * (kinds.embedding in kept), [-2] * (kinds.loss in kept)]
                stages.append([*ends[0], *ids, *ends[1]])
        return stages

    return read


class Layer(nn.Module):
    """A layer with one parameter, whose value is its number."""

    def __init__(self, value):
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), float(value)))


class Titan(nn.Module):
    """A model with the names of torchtitan's own."""

    def __init__(self, layers):
        super().__init__()
        self.tok_embeddings = Layer(-1)
        self.layers = nn.ModuleList(map(Layer, range(layers)))
        self.norm, self.lm_head = Layer(-2), Layer(-2)


class TitanTransformers(Titan):
    """The same as torchtitan's wrapper of transformers names it."""

    def __init__(self, layers):
        super().__init__(layers)
        self.rotary_emb = Layer(-3)


class Decoder(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.embed_tokens, self.rotary_emb, self.norm = Layer(-1), Layer(-3), Layer(-2)
        self.layers = nn.ModuleList(map(Layer, range(layers)))


class Transformers(nn.Module):
    """A model with the names of transformers' Llama."""

    def __init__(self, layers):
        super().__init__()
        self.model, self.lm_head = Decoder(layers), Layer(-2)


def kept(model, *, everywhere=()):
    """The numbers of the layers whose parameters a stage keeps."""
    numbers = [int(value) for value in dict.fromkeys(p.item() for p in model.parameters())]
    assert set(everywhere) <= set(numbers), "a stage has no rotary embedding"
    ordered = [number for number in numbers if number not in everywhere]
    return sorted(ordered, key=lambda number: {-1: -1, -2: 1 << 30}.get(number, number))


def mesh(rank, size):
    return SimpleNamespace(
        get_local_rank=lambda: rank, size=lambda: size, get_group=lambda *_: None
    )


def titan():
    module = loaded("torchtitan/distributed/pipeline_parallel.py", "tyro", "spmd_types")
    module.ModuleList = nn.ModuleList

    def read(case):
        whole = Titan(case["layers"])
        parts = case["words"]["module_fqns_per_model_part"]
        return [kept(module._split_module(whole, part)) for part in parts]

    return read


def titan_transformers():
    file = "torchtitan/experiments/transformers_modeling_backend/pipeline.py"
    module = loaded(file, "torchtitan")
    module.ModuleList = nn.ModuleList
    module.Identity = SimpleNamespace(Config=lambda: SimpleNamespace(build=nn.Identity))

    def split(whole, parts, rank, size, schedule):
        return module.pipeline_module_split(whole, mesh(rank, size), schedule, "cpu", parts)[1]

    return lambda case: by_rank(module, case, TitanTransformers, split)


def nemo():
    module = loaded("nemo_automodel/components/distributed/pipelining/functional.py")

    def split(whole, parts, rank, size, schedule):
        return module.split_model_into_stages(
            whole, mesh(rank, size), "pp", schedule, "cpu", module_names_per_stage=parts
        )[1]

    return lambda case: by_rank(module, case, Transformers, split)


def by_rank(module, case, model, split):
    """The stages that each rank builds, in the order of stages."""
    parts, size = case["words"]["module_fqns_per_model_part"], case["size"]
    schedule = "1F1B" if len(parts) == size else "Interleaved1F1B"
    with mock.patch.object(module, "PipelineStage"):
        ranks = [split(model(case["layers"]), parts, rank, size, schedule) for rank in range(size)]
    return [kept(ranks[at % size][at // size], everywhere=(-3,)) for at in range(len(parts))]


def mindformers():
    file = "mindformers/parallel_core/training_graph/transformer/utils.py"
    module = loaded(file, "mindspore", "hyper_parallel", "mindformers")
    contexts = {"pipeline_interleave": True, "pipeline_scheduler": "1f1b"}
    module.ms.get_auto_parallel_context = contexts.get
    module.is_legacy_model = lambda: False
    # What is swapped and runs again is asked of other settings.
    module.TransformerSwapConfig = lambda **_: SimpleNamespace(swap=False)
    module.TransformerRecomputeConfig = lambda **_: False

    def read(case):
        words = case["words"]
        size, chunks = words["pipeline_stage"], words.get("pp_interleave_num", 1)
        settings = mock.MagicMock(pipeline_model_parallel_size=size)
        found = module.LayerSetting(case["layers"], words["offset"], settings, chunks)
        where = zip(found.interleave_ids, found.pp_ids, strict=True)
        stages = [[] for _ in case["counts"]]
        for layer, (chunk, rank) in enumerate(where):
            stages[int(chunk) * size + int(rank)].append(layer)
        return [[-1, *stages[0]], *stages[1:-1], [*stages[-1], -2]]

    return read


def pynative():
    file = "mindformers/pynative/distributed/pipeline_parallel.py"
    module = loaded(file, "mindspore", "hyper_parallel", "mindformers")

    def read(case):
        defaults = {"pipeline_parallel_interleave_num": 1}
        settings = SimpleNamespace(**{**defaults, **case["words"]})
        found = module.PpLayerSetting(case["layers"], settings)
        ranges = map(found.get_layer_range, range(found.num_virtual_stages))
        return with_ends((first, last + 1) for first, last in ranges)

    return read


def transformers():
    from transformers.distributed.pipeline_parallel import PipelineStage

    from fx_bridge.interop.transformers_ranks import stages_with_layers

    def read(case):
        made = object.__new__(stages_with_layers(PipelineStage, case["words"]["layers"]))
        made.pp_size = case["words"]["pp_size"]
        return with_ends(
            made.layer_range_for_rank(rank, case["layers"]) for rank in range(made.pp_size)
        )

    return read


def main():
    read = globals()[sys.argv[1]]()
    print(json.dumps([read(case) for case in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
