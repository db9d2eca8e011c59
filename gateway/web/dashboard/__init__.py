"""`/dashboard`: the page over the admin API. It asks for the token that the admin API needs."""

from __future__ import annotations

from pathlib import Path

from gateway.pipeline import Services
from gateway.web.one_script import one_script
from gateway.web.static_page import StaticPage

FOLDER = Path(__file__).parent

SCRIPT = "all.js"
"""The modules of the page as one file, which it loads."""

APART = "theme.js"
"""A script that runs before the page is shown."""

OFF = "This gateway has no dashboard: set admin.token in its configuration, and reload it."


class Dashboard(StaticPage):
    """The page and its files."""

    def __init__(self) -> None:
        modules = {path.stem: path.read_text() for path in FOLDER.glob("*.js") if path.name != APART}
        super().__init__("/dashboard", FOLDER, {SCRIPT: one_script(modules, "app").encode()})

    def why_off(self, services: Services) -> str | None:
        return None if services.config.has_admin_api else OFF
