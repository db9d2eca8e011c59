"""The HTTP server side."""
