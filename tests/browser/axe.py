"""What axe-core finds on a page. `make servers` installs it."""

from __future__ import annotations

from typing import Any

from tests.fakes.redis_servers import ROOT

from .chromium import Page

AXE = ROOT / ".venv" / "servers" / "axe-core" / "node_modules" / "axe-core" / "axe.min.js"
RULES = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
RULES_OF_COLOURS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
"""For the dark theme: it changes colours alone, and all rules hold for the light one."""


def check(page: Page, where: str) -> None:
    """Asserts that axe-core finds nothing on the current page."""
    page.run("if (!window.axe) { const module = undefined; " + AXE.read_text() + " }")
    found: list[dict[str, Any]] = page.driver.execute_async_script(
        "const done = arguments[1];"
        "axe.run(document, {runOnly: arguments[0]})"
        ".then((told) => done(told.violations.map((each) =>"
        "({rule: each.id, at: each.nodes.map((node) => node.html.slice(0, 200)).slice(0, 3)}))))",
        RULES_OF_COLOURS if page.run("return matchMedia('(prefers-color-scheme: dark)').matches") else RULES,
    )
    assert not found, f"{where}: {found}"
