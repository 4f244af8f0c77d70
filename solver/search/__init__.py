"""The search: presolve, a schedule of heuristics and bounds, branch and bound."""
