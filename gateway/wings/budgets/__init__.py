"""Budgets of people over HTTP: who is near hers, and quotas of her own. `keys/manage_people.py` has the rules, and
`gateway people` the same on the store itself.
"""
