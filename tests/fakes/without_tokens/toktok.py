"""Stands before the package of this name on `PYTHONPATH`, as if the extra `tokens` were not installed."""

raise ModuleNotFoundError("No module named 'toktok'", name="toktok")
