"""What the evaluator asks: where a plan puts operators, what travels, what stages hold."""
