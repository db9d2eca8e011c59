"""The formats of calls that the gateway speaks, one module each; `format.py` defines a format, `table.py` lists all."""
