"""Completions requests for upstreams that accept one prompt at a time or only chat."""
