"""Calls of other APIs than those of `formats/`, such as tasks of a reseller, by rows of the section `passthrough`.

`notation.py` has the words of a row, `formats.py` reads bodies by it; `relay/deferred.py` polls and settles tasks.
"""
