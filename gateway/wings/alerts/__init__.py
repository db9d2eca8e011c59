"""Alerts when a quota is nearly or wholly spent, and incidents for operators: to a log, a metric and receivers, once.

`policy.py` decides when and for which windows, `routing.py` for which receivers; `watcher.py` claims due alerts for one
worker, `incident_watcher.py` the incidents of `incidents.py`; `forms.py` has the JSON of each receiver; `outbox.py`
repeats deliveries that failed; `webhook.py` and `mail.py` are one attempt. The other modules are parts for the trunk.
"""
