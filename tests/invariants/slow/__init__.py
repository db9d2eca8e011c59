"""The same, for what takes longer than the fast tier may."""
