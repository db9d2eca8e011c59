"""Events of streams, as bytes. JSON is ASCII: halves of a surrogate pair in two pieces pass as they came."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

DONE = b"data: [DONE]\n\n"
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


def named(kind: str, data: Mapping[str, Any]) -> bytes:
    """An event with a name, as Responses and Messages have it."""
    return b"event: " + kind.encode() + b"\n" + unnamed(data)


def unnamed(data: Mapping[str, Any]) -> bytes:
    """An event of chat."""
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
