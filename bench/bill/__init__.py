"""`python -m bench.bill`: a gateway, and a provider that bills by rules of its own."""
