"""Limits on client connections that aiohttp does not set."""
