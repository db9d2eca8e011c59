"""Stands before the packages of this name on `PYTHONPATH`, as if the extra `otel` were not installed."""

raise ModuleNotFoundError("No module named 'opentelemetry'", name="opentelemetry")
