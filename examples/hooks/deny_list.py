"""A hook that refuses prompts with what is on a list, one regular expression per line:
`HOOK_SECRET=whsec_... python deny_list.py deny.txt`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hook_server import ALLOW, Decide, server, texts_of

PORT = 9102


def denying(lines: Iterable[str]) -> Decide:
    patterns = [re.compile(line.strip(), re.IGNORECASE) for line in lines if line.strip()]

    def decide(question: dict[str, Any]) -> dict[str, Any]:
        if any(pattern.search(text) for text in texts_of(question["body"]) for pattern in patterns):
            message = "Your request has something on the list of what may not be sent. Leave it out."
            return {"action": "refuse", "status": 403, "code": "on_deny_list", "message": message}
        return ALLOW

    return decide


if __name__ == "__main__":
    server(denying(Path(sys.argv[1]).read_text().splitlines()), os.environ["HOOK_SECRET"], PORT).serve_forever()
