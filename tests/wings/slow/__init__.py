"""Tests of the wings that take more than about 3 s."""
