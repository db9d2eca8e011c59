"""The Redis store, shared by gateways on several nodes."""
