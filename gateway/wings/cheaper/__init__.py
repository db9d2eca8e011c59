"""A cheaper model when money gets short: above a share of a key's, a person's or a team's quota of money, another model
serves than the one that was asked for.

`policy.py` decides, without I/O: which steps are reached, and which calls may change their model. `shares.py` knows how
much of each window is spent or reserved. `steps.py` gives steps at run time, which the store has in the overlay of a
key, team or person. The other modules are parts for the trunk.
"""
