"""Alerts for operators when a quota is nearly or wholly spent: a log line, a metric and a webhook, each once.

`policy.py` decides when and for which windows; `watcher.py` finds due alerts and claims them for one worker;
`outbox.py` repeats deliveries that failed; `webhook.py` is one attempt.
"""

from __future__ import annotations

from .outbox import Outbox
from .watcher import Watcher
from .webhook import Webhook

__all__ = ["Outbox", "Watcher", "Webhook"]
