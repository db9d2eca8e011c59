"""People who leave: their keys, tokens and sessions end when they have not signed in for a time, or when the identity
provider has no group for them any more. Also the warnings of named admin tokens that end.

`policy.py` decides; `access.py` reads and changes what the store has of a person. The other modules are parts for the
trunk.
"""
