"""Tests of commands as processes."""
