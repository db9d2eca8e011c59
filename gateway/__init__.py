"""A reverse proxy for OpenAI-style completions that a whole team shares.

Start with `pipeline/`, the steps of one call; docs/architecture.md describes the rest.
"""

__version__ = "0.2.0"
