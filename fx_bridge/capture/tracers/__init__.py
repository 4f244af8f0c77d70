"""The ways to capture: torch.export, symbolic tracing, make_fx."""
