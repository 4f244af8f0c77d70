"""Plans for readers: names by module, tables, answers, pictures and pages.

All tables are laid out by ``tables.py``, and all stages are named by ``modules.py``.
"""
