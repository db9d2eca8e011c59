"""Quotas and money: windows, prices, rate-limit headers and ledger entries. No clock, no I/O."""
