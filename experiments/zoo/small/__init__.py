"""Small models with random weights, of kinds that capture finds hard: they are run and compared.

A file for each kind; `configurations` lists them all.
"""
