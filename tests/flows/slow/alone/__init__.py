"""Whole gateways whose timing or memory is judged: no other test runs meanwhile."""
