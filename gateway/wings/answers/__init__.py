"""The two answers of the dashboard's first screen: `GET /admin/api/money` (shall we stay in budget?) and
`GET /admin/api/problems` (what is wrong now, and since when?).

`forecast.py` is the one rule for what will be used; `money.py`, `failing.py` and `problems.py` decide, without I/O;
`operations.py` documents the two readings, `endpoints.py` serves them.
"""
