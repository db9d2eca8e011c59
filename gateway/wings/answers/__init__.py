"""The answers of the dashboard's first screen: `GET /admin/api/money` (shall we stay in budget?), `GET
/admin/api/problems` (what is wrong now, and since when?), `GET /admin/api/minutes` (what happens right now?) and `GET
/admin/api/events` (what was deployed and reloaded?).

`forecast.py` is the one rule for what will be used; `money.py`, `failing.py`, `problems.py`, `bills.py`, `events.py`
and `minutes.py` decide, without I/O; `background.py` notes deploys and reloads; `operations.py` documents the readings,
`endpoints.py` serves them.
"""
