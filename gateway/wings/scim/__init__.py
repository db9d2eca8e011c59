"""SCIM 2.0 (RFC 7643, RFC 7644): an identity provider reports here who has joined, left, or changed a group.

`patch.py` and `filters.py` read the requests of providers; `resources.py` has users and groups; `directory.py` keeps
them, and ends the access of those who leave. The other modules are parts for the trunk.
"""
