"""Tests of the comparison with a provider's export."""
