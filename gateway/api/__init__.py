"""Request checks: API keys, JSON bodies, parameter rules and prompt token counts. No I/O."""
