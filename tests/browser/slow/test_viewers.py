"""The viewers of tests/browser/load.py make the same requests as the page."""

from __future__ import annotations

import re
from datetime import date

import pytest

from tests.browser.chromium import Page
from tests.browser.viewers import MEMBER_VIEWS, VIEWS, Person, Subjects, paths
from tests.flows.gateway_process import ADMIN_TOKEN, COMPLETIONS, secret

PREFIX = "/admin/api/"
OF = Subjects(key="alice", team="crew", model=COMPLETIONS, upstream="main")
OPERATOR, MEMBER = Person(ADMIN_TOKEN, VIEWS), Person(secret(OF.key), MEMBER_VIEWS, ())


def plain(asked: set[str]) -> set[str]:
    """Requests with each day replaced by its distance to the newest, so that they survive midnight."""
    found = [date.fromisoformat(day) for path in asked for day in re.findall(r"\d{4}-\d\d-\d\d", path)]
    return {
        re.sub(r"\d{4}-\d\d-\d\d", lambda day: str((max(found) - date.fromisoformat(day[0])).days), path)
        for path in asked
    }


def asked_since(page: Page) -> set[str]:
    """Requests since the last call, with the names of `Poll`: below the admin API, or of models."""
    urls = [each["url"].removeprefix(page.address) for each in page.requested()]
    return {url.removeprefix(PREFIX) for url in urls if url.startswith((PREFIX, "/v1/"))}


@pytest.mark.parametrize(
    ("person", "view"),
    [(OPERATOR, view) for view in VIEWS] + [(MEMBER, view) for view in MEMBER_VIEWS],
    ids=[*VIEWS, *(f"member: {view}" for view in MEMBER_VIEWS)],
)
def test_viewers_ask_what_the_page_asks(page: Page, person: Person, view: str) -> None:
    page.open(token=person.token)
    before = "audit" if person is OPERATOR else "keys"
    page.go(before)
    # The browser reports requests in order: after this one, all requests of the view before are reported.
    page.until(lambda: [path for path in asked_since(page) if path.startswith(f"{before}?")])
    page.go(view.format(**OF._asdict()))
    always = {poll.path for poll in person.always}
    wanted = plain({poll.path for poll in paths(person.views[view], OF)})
    asked: set[str] = set()

    def look() -> bool:
        asked.update(asked_since(page))
        return always <= asked and plain(asked - always) >= wanted

    page.until(look)
    assert plain(asked - always) == wanted
