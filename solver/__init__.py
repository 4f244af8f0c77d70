"""Exact and heuristic partitioning of operator graphs onto devices; knows nothing of torch."""

from solver.diagnosis.answer import Diagnosis
from solver.diagnosis.diagnose import diagnose
from solver.evaluation.evaluate import Evaluation, evaluate
from solver.evaluation.result import SolveResult, SolveStatus, StepRecord
from solver.evaluation.step import PipelineStep
from solver.evaluation.summary import summary
from solver.evaluation.timeline import PipelineTimeline, PipelineTimes, simulate
from solver.evaluation.usage import DeviceUsage
from solver.io.digraph import problem_from_digraph, problem_to_digraph
from solver.io.json_files import load_plan, load_problem, save_plan, save_problem
from solver.model.devices import (
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
from solver.model.errors import PartitionError
from solver.model.limits import Progress, SolveLimits
from solver.model.operators import Operator
from solver.model.pipeline import Pipeline
from solver.model.plan import PartitionPlan, Stage
from solver.model.problem import (
    MEMORY_MODELS,
    OBJECTIVES,
    ColocationGroup,
    GraphInput,
    PartitionProblem,
    Weight,
)
from solver.model.schedules import Action, ActionTables, action_tables
from solver.model.training import Backward, in_flight
from solver.search.solve import (
    SOLVERS,
    check_limits,
    check_solver,
    check_without,
    solve,
    step_names,
)

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
    "Pipeline",
    "PipelineStep",
    "PipelineTimeline",
    "PipelineTimes",
    "Progress",
    "SolveLimits",
    "SolveResult",
    "SolveStatus",
    "Stage",
    "StepRecord",
    "Weight",
    "action_tables",
    "check_limits",
    "check_solver",
    "check_without",
    "diagnose",
    "evaluate",
    "in_flight",
    "load_plan",
    "load_problem",
    "problem_from_digraph",
    "problem_to_digraph",
    "save_plan",
    "save_problem",
    "simulate",
    "solve",
    "step_names",
    "summary",
]
