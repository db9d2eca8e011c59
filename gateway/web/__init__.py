"""The HTTP server side: applications, middleware and endpoints."""
