"""PyTorch models as operator graphs, and plans as submodules that run."""

import sys
from typing import TYPE_CHECKING

from solver.model.lazy_package import LazyPackage
from solver.model.presenter import Presenter, present_with

if TYPE_CHECKING:
    from fx_bridge.batch.microbatches import chunk_specs as chunk_specs
    from fx_bridge.batch.table import batch_dimensions as batch_dimensions
    from fx_bridge.capture.graph import CapturedGraph as CapturedGraph
    from fx_bridge.capture.graph import capture as capture
    from fx_bridge.checkpoint.ranks import load_rank_weights as load_rank_weights
    from fx_bridge.checkpoint.stages import load_stage_weights as load_stage_weights
    from fx_bridge.checkpoint.stages import save_stages as save_stages
    from fx_bridge.costs.device_presets import DEVICE_SPECS as DEVICE_SPECS
    from fx_bridge.costs.device_specs import DeviceSpec as DeviceSpec
    from fx_bridge.costs.latency import measured_latency_ns as measured_latency_ns
    from fx_bridge.costs.recompute import Recompute as Recompute
    from fx_bridge.digraph import to_digraph as to_digraph
    from fx_bridge.equivalence.check import EquivalenceReport as EquivalenceReport
    from fx_bridge.equivalence.check import check_equivalence as check_equivalence
    from fx_bridge.interop.read_plans import plan_from_device_map as plan_from_device_map
    from fx_bridge.interop.read_plans import plan_from_split_spec as plan_from_split_spec
    from fx_bridge.interop.write_plans import device_map as device_map
    from fx_bridge.interop.write_plans import split_spec as split_spec
    from fx_bridge.memory.profile import memory_profile as memory_profile
    from fx_bridge.memory.profile import peak_memory as peak_memory
    from fx_bridge.options import Costs as Costs
    from fx_bridge.options import Placement as Placement
    from fx_bridge.options import Search as Search
    from fx_bridge.options import Training as Training
    from fx_bridge.partition import PartitionResult as PartitionResult
    from fx_bridge.partition import partition_module as partition_module
    from fx_bridge.pipeline.build import build_pipeline_stage as build_pipeline_stage
    from fx_bridge.pipeline.rank import PipelineRank as PipelineRank
    from fx_bridge.placement.model import PlacedModel as PlacedModel
    from fx_bridge.placement.model import place as place
    from fx_bridge.presentation.summary import summary as summary
    from fx_bridge.split.by_plan import split_by_plan as split_by_plan
    from fx_bridge.split.graph import StageGraph as StageGraph
    from fx_bridge.split.reader import stage_graph as stage_graph
    from fx_bridge.split.tags import split_by_tags as split_by_tags
    from solver import Pipeline as Pipeline


def _presenter() -> Presenter:
    from fx_bridge.presentation import plan_files

    return plan_files


present_with(_presenter)
sys.modules[__name__].__class__ = LazyPackage
