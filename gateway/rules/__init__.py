"""Decisions: no clock, no I/O, no async."""
