"""All small models."""

from benchmarks.coverage import small_libraries, small_torch


def small_models():
    """Return all small models by name."""
    models = (*small_libraries.MODELS, *small_torch.MODELS)
    families = [each.family for each in models]
    return {
        each.name: each for each in sorted(models, key=lambda each: families.index(each.family))
    }
