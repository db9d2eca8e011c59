"""Ledger arithmetic that both stores apply: Python here, Lua in store/redis."""
