"""A reverse proxy for OpenAI-style completions that a whole team shares.

Start with `pipeline.py`, the story of one call; the README has a tour of the house.
"""

__version__ = "0.2.0"
