"""Tests that run examples against a whole gateway."""
