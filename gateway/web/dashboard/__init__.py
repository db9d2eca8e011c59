"""`/dashboard`: the page over the admin API. It asks for the token that the admin API needs."""

from __future__ import annotations

from collections.abc import Mapping
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
        super().__init__("/dashboard", FOLDER)

    def made_from(self, contents: Mapping[str, bytes]) -> Mapping[str, bytes]:
        scripts = [name for name in contents if name.endswith(".js") and name != APART]
        modules = {name.removesuffix(".js"): contents[name].decode() for name in scripts}
        return {SCRIPT: one_script(modules, "app").encode()}

    def why_off(self, services: Services) -> str | None:
        return None if services.config.has_admin_api else OFF
