"""Costs and feasibility of plans: their only definition, and results judged by it."""
