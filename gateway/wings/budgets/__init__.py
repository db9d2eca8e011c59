"""Budgets of people, over HTTP and by `gateway people`: who is near hers, and quotas of her own. Both end access,
too, by rules of the trunk (`keys/manage_people.py`).

`people.py` shows people and sets their limits. The other modules are parts for the trunk.
"""
