"""People sign in by OpenID Connect, or call with signed tokens of an identity provider; operators end their sessions.
The limits and the access of people are of the trunk: all owners of keys have them.
"""
