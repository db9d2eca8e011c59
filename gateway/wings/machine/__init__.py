"""Warnings of `gateway check` about the machine: file systems that lose data, files that others read, few descriptors.

`findings.py` looks; `check.py` is the part for the trunk.
"""
