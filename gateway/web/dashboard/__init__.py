"""`/dashboard`: the page over the admin API. It asks for the token that the admin API needs."""

from __future__ import annotations

from pathlib import Path

from gateway.pipeline import Services
from gateway.web.static_page import StaticPage

FOLDER = Path(__file__).parent

OFF = "This gateway has no dashboard: set admin.token in its configuration, and reload it."


class Dashboard(StaticPage):
    """The page and its files."""

    def __init__(self) -> None:
        super().__init__("/dashboard", FOLDER)

    def why_off(self, services: Services) -> str | None:
        return None if services.config.has_admin_api else OFF
