"""Answers to people and scripts: rows of usage, of keys and teams, as tables, CSV or JSON."""
