"""Exact and heuristic partitioning of operator graphs onto devices; knows nothing of torch."""

import sys
from typing import TYPE_CHECKING

from solver.model.lazy_package import LazyPackage

if TYPE_CHECKING:
    from solver.diagnosis.answer import Diagnosis as Diagnosis
    from solver.diagnosis.diagnose import diagnose as diagnose
    from solver.evaluation.evaluate import Evaluation as Evaluation
    from solver.evaluation.evaluate import evaluate as evaluate
    from solver.evaluation.result import SolveResult as SolveResult
    from solver.evaluation.result import SolveStatus as SolveStatus
    from solver.evaluation.result import StepRecord as StepRecord
    from solver.evaluation.step import PipelineStep as PipelineStep
    from solver.evaluation.timeline import PipelineTimeline as PipelineTimeline
    from solver.evaluation.timeline import PipelineTimes as PipelineTimes
    from solver.evaluation.usage import DeviceUsage as DeviceUsage
    from solver.io.digraph import problem_from_digraph as problem_from_digraph
    from solver.io.digraph import problem_to_digraph as problem_to_digraph
    from solver.io.json_files import load_plan as load_plan
    from solver.io.json_files import load_problem as load_problem
    from solver.io.json_files import save_plan as save_plan
    from solver.io.json_files import save_problem as save_problem
    from solver.model.devices import DEFAULT_DEVICE_CLASS as DEFAULT_DEVICE_CLASS
    from solver.model.devices import PCIE as PCIE
    from solver.model.devices import STAGING_HOST as STAGING_HOST
    from solver.model.devices import Device as Device
    from solver.model.devices import GiB as GiB
    from solver.model.devices import Interconnect as Interconnect
    from solver.model.devices import KiB as KiB
    from solver.model.devices import Link as Link
    from solver.model.devices import MiB as MiB
    from solver.model.errors import PartitionError as PartitionError
    from solver.model.job import Host as Host
    from solver.model.job import Job as Job
    from solver.model.limits import Progress as Progress
    from solver.model.limits import SolveLimits as SolveLimits
    from solver.model.operators import Operator as Operator
    from solver.model.pipeline import Pipeline as Pipeline
    from solver.model.plan import PartitionPlan as PartitionPlan
    from solver.model.plan import Stage as Stage
    from solver.model.plan import repair_colocation as repair_colocation
    from solver.model.problem import PartitionProblem as PartitionProblem
    from solver.model.problem_fields import MEMORY_MODELS as MEMORY_MODELS
    from solver.model.problem_fields import OBJECTIVES as OBJECTIVES
    from solver.model.problem_fields import ColocationGroup as ColocationGroup
    from solver.model.problem_fields import GraphInput as GraphInput
    from solver.model.problem_fields import Weight as Weight
    from solver.model.schedules import Action as Action
    from solver.model.schedules import ActionTables as ActionTables
    from solver.model.schedules import action_tables as action_tables
    from solver.model.training import Backward as Backward
    from solver.model.training import in_flight as in_flight
    from solver.search.solve import SOLVERS as SOLVERS
    from solver.search.solve import check_limits as check_limits
    from solver.search.solve import check_solver as check_solver
    from solver.search.solve import check_without as check_without
    from solver.search.solve import solve as solve
    from solver.search.solve import step_names as step_names
    from solver.serving.solve import solve_job as solve_job

sys.modules[__name__].__class__ = LazyPackage
