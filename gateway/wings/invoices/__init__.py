"""Comparison of the gateway's usage with a provider's usage export: `gateway usage --compare FILE`.

`invoice.py` reads the export; `compare.py` matches days and models; `comparison.py` has the rows, tables and notes;
`usage.py` adds the option to the command.
"""
