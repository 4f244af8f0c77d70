"""How operators pass on the batch dimension: a rule for each."""
