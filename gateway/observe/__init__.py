"""Metrics, traces and live counters."""
