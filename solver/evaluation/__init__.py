"""What a plan costs and whether it is feasible: the only definition, and answers judged by it."""
