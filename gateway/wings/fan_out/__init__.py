"""A completions call with several prompts, carried prompt by prompt to upstreams that take single ones only."""
