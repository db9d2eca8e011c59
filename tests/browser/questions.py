"""Twenty questions of three people, each with the way to its answer in the page.

A lead at the end of a month, an engineer with a call that failed, a member who wonders what is left. A way begins where
sign-in leads to and has three clicks at most; tests/browser/slow/test_questions.py walks it and compares the answer
with the admin API.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from tests.browser.chromium import Page
from tests.flows.gateway_process import CHAT, Gateway

from .conftest import ago

Person = Literal["lead", "engineer", "member"]
Answer = Callable[[Gateway], str]
"""What has to stand there, from the admin API."""

MOST_CLICKS = 3
FIRST = "main table tbody tr:first-child a"
LATENCY = "section[aria-labelledby=latency-title] .flush table"
TABLE = "section[aria-labelledby=who-title] table"


class Question(NamedTuple):
    person: Person
    text: str
    clicks: Sequence[str | Answer]
    """Selectors; `text=WORDS` behind a blank narrows one to the element with these words."""
    where: str
    """The selector of the answer."""
    answer: Answer
    is_call: bool = False
    """Whether a click makes a call."""


def _usage(gateway: Gateway, group: str, days: int = 29, **more: str) -> list[dict[str, Any]]:
    return gateway.usage(group_by=group, since=ago(days), **more)


def _most(gateway: Gateway, group: str, number: str) -> str:
    return str(max(_usage(gateway, group), key=lambda row: row[number] or 0)[group])


def _failed(gateway: Gateway) -> str:
    (all_days,) = _usage(gateway, "")
    return f"{all_days['errors']} of {all_days['requests']} requests"


def _near(gateway: Gateway) -> str:
    rows = gateway.admin("quotas").json["data"]
    return str(sum((row["used"] + row["reserved"]) / row["limit"] >= 0.8 for row in rows))


def _slowest(gateway: Gateway) -> str:
    rows = gateway.admin("latency", group_by="model", since=ago(29)).json["data"]
    return str(max(rows, key=lambda row: row["first_token_p95_s"] or 0)["model"])


def _refused(gateway: Gateway) -> dict[str, Any]:
    found: dict[str, Any] = gateway.admin("refusals", limit="1").json["data"][0]
    return found


def _row_of_the_refusal(gateway: Gateway) -> str:
    return f"tr[data-name='{_refused(gateway)['id']}'] th a"


QUESTIONS = [
    Question("lead", "What will this month cost?", [], "[data-figure=spend] .more b", lambda _: "$"),
    Question("lead", "How much was used in the last 7 days, compared with the 7 before?", ["[data-choice='7d']"],
             "[data-figure=requests-in-range]", lambda gateway: str(_usage(gateway, "", 6)[0]["requests"])),
    Question("lead", "Which model costs most?", [], f"{TABLE} tbody tr:first-child th",
             lambda gateway: _most(gateway, "model", "cost_usd")),
    Question("lead", "Which team spends most?", ["[data-choice=team]"], f"{TABLE} tbody tr:first-child th",
             lambda gateway: _most(gateway, "team", "cost_usd") or "\u2013"),
    Question("lead", "Which key of the team crew uses most?",
             ["[data-choice=team]", f"{TABLE} tr[data-name=crew] .only", "[data-choice=key]"],
             f"{TABLE} tbody tr:first-child th", lambda _: "alice"),
    Question("lead", "Who is near a limit?", [], "[data-figure=near] .figure", _near),
    Question("lead", "How do I take the numbers with me?", [], "section[aria-labelledby=who-title] .csv",
             lambda _: "Download (CSV)"),
    Question("engineer", "How many calls failed, and was it so before?", [], "[data-figure=errors-in-range]", _failed),
    Question("engineer", "Which upstream fails?", ["[data-choice=upstream]", "[data-choice=errors]"],
             f"{TABLE} tbody tr:first-child th", lambda gateway: _most(gateway, "upstream", "errors")),
    Question("engineer", "Is the upstream serving now?", [], "[data-upstream=main] .pill", lambda _: "serving"),
    Question("engineer", "How long does the first token take?", [], "[data-figure=first-token-p95]",
             lambda _: "half within"),
    Question("engineer", "Which model is slow?", [f"{LATENCY} th button text=First token p95"],
             f"{LATENCY} tbody tr:first-child th", _slowest),
    Question("engineer", "Why was I refused at 14:32?",
             ["[data-figure=errors-in-range] [data-refused]", _row_of_the_refusal],
             "dialog .why", lambda gateway: str(_refused(gateway)["message"])[:40]),
    Question("engineer", "What became of the last failed call, and at which upstream?",
             ["#nav a[href='#calls']", "select[name=outcome] option[value=failed]", FIRST],
             "dialog .attempts", lambda _: "main"),
    Question("member", "What have I spent this month?", [], "[data-figure=spend] .figure", lambda _: "$"),
    Question("member", "What is left, and when is it free again?", [], "[data-key=alice] .quota[data-unit=requests]",
             lambda _: "resets in"),
    Question("member", "What may I call?", [], ".may-call td, .may-call th[scope=row]", lambda _: CHAT),
    Question("member", "Why was I refused?", [], "section[aria-labelledby=refused-title] tbody tr .why-cell",
             lambda gateway: gateway.admin("refusals", key="alice").json["data"][0]["message"][:40]),
    Question("member", "How do I connect Claude Code?", ["[data-choice=claude]"], ".settings",
             lambda gateway: f"ANTHROPIC_BASE_URL={gateway.url}"),
    Question("member", "Does my key work at all?", [".test-call button"], "[data-test]", lambda _: "It works",
             is_call=True),
]  # fmt: skip


def walk(page: Page, question: Question, gateway: Gateway) -> None:
    """The clicks of a question."""
    assert len(question.clicks) <= MOST_CLICKS
    for click in question.clicks:
        css, _, text = (click if isinstance(click, str) else click(gateway)).partition(" text=")
        page.click(css, text)
        page.until(lambda: not page.all("[aria-busy]"))  # what was asked for is there
