"""An operator is told that a quota comes to its end: by a log line, a metric and a webhook, each once.

watcher.py finds out what is to be told and who tells it; sweep.py goes through all that might be; outbox.py keeps what
the webhook has not taken yet; webhook.py is one attempt. When and of what is decided in alerts/policy.
"""

from __future__ import annotations

from .outbox import Outbox
from .watcher import Watcher
from .webhook import Webhook

__all__ = ["Outbox", "Watcher", "Webhook"]
