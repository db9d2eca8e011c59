"""A hook after calls that reports answers with something like a secret in them, never the secret itself:
`HOOK_SECRET=whsec_... python secrets_in_answers.py`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from hook_server import Decide, server

SECRET = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{20,}|AKIA[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{36})\b|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
PORT = 9104


def watching(report: Callable[[str], None]) -> Decide:
    had: dict[str, None] = {}

    def decide(posted: dict[str, Any]) -> dict[str, Any]:
        call, answer = posted["call"], posted.get("answer") or {"texts": []}
        if call["id"] not in had and any(SECRET.search(text) for text in answer["texts"]):
            report(f"call {call['id']} of key {call['key']}: the answer of {call['model']} has something like a secret")
        had[call["id"]] = None  # a delivery may come twice
        if len(had) > 1000:
            del had[next(iter(had))]
        return {}

    return decide


if __name__ == "__main__":
    server(watching(print), os.environ["HOOK_SECRET"], PORT).serve_forever()
