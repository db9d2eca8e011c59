"""Slow tests of request checks."""
