"""A hook that asks OpenAI's moderation endpoint, through the gateway itself, with a key of its own:
`HOOK_SECRET=whsec_... GATEWAY_KEY=sk-gw-... python moderation.py http://127.0.0.1:8080`."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from typing import Any

from hook_server import ALLOW, Decide, server, texts_of

PORT = 9103
MODEL = "omni-moderation-latest"


def moderating(gateway: str, key: str) -> Decide:
    def decide(question: dict[str, Any]) -> dict[str, Any]:
        texts = [text for text in texts_of(question["body"]) if text]
        if not texts:
            return ALLOW
        asked = urllib.request.Request(  # noqa: S310 - the address is the operator's own
            f"{gateway}/v1/moderations",
            json.dumps({"model": MODEL, "input": texts}).encode(),
            {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=5) as answer:  # noqa: S310
            results = json.load(answer)["results"]
        flagged = sorted({name for result in results for name, is_so in result["categories"].items() if is_so})
        if not flagged:
            return ALLOW
        message = f"Your request was flagged as {', '.join(flagged)}."
        return {"action": "refuse", "status": 400, "code": "content_policy_violation", "message": message}

    return decide


if __name__ == "__main__":
    server(moderating(sys.argv[1], os.environ["GATEWAY_KEY"]), os.environ["HOOK_SECRET"], PORT).serve_forever()
