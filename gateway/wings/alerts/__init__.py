"""Alerts for operators when a quota is nearly or wholly spent: a log line, a metric and a webhook, each once.

`policy.py` decides when and for which windows; `watcher.py` finds due alerts and claims them for one worker;
`outbox.py` repeats deliveries that failed; `webhook.py` is one attempt. The other modules are parts for the trunk.
"""
