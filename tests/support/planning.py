"""Tasks of planners that read a model."""

from experiments.planners.task import PlanningTask
from experiments.zoo.building import LoadedModel
from fx_bridge import Training
from fx_bridge.capture.graph import capture
from fx_bridge.digraph import to_digraph
from solver import problem_from_digraph


def task_of(model, args, devices, **settings):
    """Return the task of planning a model on devices, with the settings of its problem."""
    captured = capture(model, args)
    training = Training() if settings.get("memory_model") == "training" else None
    problem = problem_from_digraph(to_digraph(captured, training=training), devices, **settings)
    return PlanningTask(problem, LoadedModel("model", model, args), captured)
