"""The golden files of the bridge: what a client asks, what a chat-only upstream is asked and answers, what comes back.

Each file of tests/recorded/bridge is one call. `request` is its body; `sent` and `answers` belong together, one for
each prompt; of a stream, `answers` are lists of chunks. Then what the client is to see: `answer`, or of a stream
`chunks` for each prompt and the `usage_chunk` behind them all, or `unfit`: a failure. They were written by hand and by
a script that knows nothing of the gateway. `cmpl-ID` and 1700000000 stand for what differs from call to call.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "recorded" / "bridge"
GOLDEN: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
FIT = [name for name, golden in GOLDEN.items() if "unfit" not in golden]
ID = "cmpl-ID"
CREATED = 1700000000


def is_stream(name: str) -> bool:
    return bool(GOLDEN[name]["request"].get("stream"))


def capabilities(name: str) -> dict[str, Any]:
    """Those of the upstream."""
    return {"completions": "via_chat", **GOLDEN[name].get("capabilities", {})}


def events(chunks: list[Any]) -> bytes:
    """The stream that these chunks make, as an upstream sends it."""
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
