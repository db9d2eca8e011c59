"""Tests of the two answers of the dashboard's first screen."""
