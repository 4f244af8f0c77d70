"""Exact and heuristic partitioning of operator graphs onto devices; knows nothing of torch."""

from solver.diagnose import diagnose
from solver.diagnosis import Diagnosis
from solver.digraph import problem_from_digraph, problem_to_digraph
from solver.errors import PartitionError
from solver.evaluate import DeviceUsage, Evaluation, evaluate
from solver.evaluating.step import PipelineStep
from solver.hardware import (
    DEFAULT_DEVICE_CLASS,
    PCIE,
    STAGING_HOST,
    Device,
    GiB,
    Interconnect,
    KiB,
    Link,
    MiB,
)
from solver.pipelines import pipeline_settings
from solver.plan import PartitionPlan, Stage
from solver.problem import (
    MEMORY_MODELS,
    OBJECTIVES,
    ColocationGroup,
    GraphInput,
    Operator,
    PartitionProblem,
    Weight,
)
from solver.registry import SOLVERS, check_limits, check_solver, solve
from solver.result import Progress, SolveLimits, Solver, SolveResult, SolveStatus
from solver.schedules import Action, ActionTables, action_tables
from solver.serialization import load_plan, load_problem, save_plan, save_problem
from solver.summary import summary
from solver.timeline import PipelineTimeline, PipelineTimes, simulate
from solver.training import Backward, in_flight

__all__ = [
    "DEFAULT_DEVICE_CLASS",
    "MEMORY_MODELS",
    "OBJECTIVES",
    "PCIE",
    "SOLVERS",
    "STAGING_HOST",
    "Action",
    "ActionTables",
    "Backward",
    "ColocationGroup",
    "Device",
    "DeviceUsage",
    "Diagnosis",
    "Evaluation",
    "GiB",
    "GraphInput",
    "Interconnect",
    "KiB",
    "Link",
    "MiB",
    "Operator",
    "PartitionError",
    "PartitionPlan",
    "PartitionProblem",
    "PipelineStep",
    "PipelineTimeline",
    "PipelineTimes",
    "Progress",
    "SolveLimits",
    "SolveResult",
    "SolveStatus",
    "Solver",
    "Stage",
    "Weight",
    "action_tables",
    "check_limits",
    "check_solver",
    "diagnose",
    "evaluate",
    "in_flight",
    "load_plan",
    "load_problem",
    "pipeline_settings",
    "problem_from_digraph",
    "problem_to_digraph",
    "save_plan",
    "save_problem",
    "simulate",
    "solve",
    "summary",
]
