"""The OpenAPI document: its operations and their schemas."""
