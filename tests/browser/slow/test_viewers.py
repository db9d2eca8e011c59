"""Whether those who look on in tests/browser/load.py ask what the page asks."""

from __future__ import annotations

import re
from datetime import date

import pytest

from tests.browser.chromium import Page
from tests.browser.viewers import ALWAYS, VIEWS, paths

PREFIX = "/admin/api/"


def plain(asked: set[str]) -> set[str]:
    """Requests with each day said as how long it is before the newest, so that midnight may pass."""
    found = [date.fromisoformat(day) for path in asked for day in re.findall(r"\d{4}-\d\d-\d\d", path)]
    return {
        re.sub(r"\d{4}-\d\d-\d\d", lambda day: str((max(found) - date.fromisoformat(day[0])).days), path)
        for path in asked
    }


@pytest.mark.parametrize("view", VIEWS)
def test_viewers_ask_what_the_page_asks(admin: Page, view: str) -> None:
    admin.go("audit")
    # The browser tells of requests in their order: with this one, all that the view before has asked is told.
    admin.until(lambda: [each for each in admin.requested() if "/audit?" in each["url"]])
    admin.go(view.format(key="alice", team="crew"))
    always = {poll.path for poll in ALWAYS}
    wanted = plain({poll.path for poll in paths(view, "alice", "crew")})
    asked: set[str] = set()

    def look() -> bool:
        asked.update(each["url"].partition(PREFIX)[2] for each in admin.requested() if PREFIX in each["url"])
        return always < asked and plain(asked - always) >= wanted

    admin.until(look)
    assert plain(asked - always) == wanted
