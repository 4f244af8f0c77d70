"""Plans as people read them: words of the module tree, tables, answers, pictures and pages.

Whoever prints a table takes ``tables.py``, and whoever shows a stage ``modules.py``.
"""
