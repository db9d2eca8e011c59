"""`/docs`: the API reference, which the browser renders from `/openapi.json` of the same listener.

The document has the operations of its listener only, so the page shows admin operations where they can be used.
"""

from __future__ import annotations

from pathlib import Path

from gateway.web.static_page import StaticPage

FOLDER = Path(__file__).parent
PATH = "/docs"


def reference() -> StaticPage:
    return StaticPage(PATH, FOLDER)
