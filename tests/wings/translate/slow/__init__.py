"""Tests of whole gateways that take more than about 3 s."""
