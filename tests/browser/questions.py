"""Questions of three people, each with the way to its answer in the page.

A lead at the end of a month, an engineer with a call that failed, a member who wonders what is left. A way begins where
sign-in leads to and has three clicks at most; tests/browser/slow/test_questions.py walks it and compares the answer
with the admin API.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from tests.browser.chromium import Page
from tests.flows.gateway_process import CHAT, COMPLETIONS, Gateway

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
    """Selectors; `text=WORDS` behind a blank narrows one to the element with these words, `type=WORDS` writes them."""
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


def _money(gateway: Gateway) -> dict[str, Any]:
    found: dict[str, Any] = gateway.admin("money").json
    return found


def _usd(amount: float) -> str:
    """As the page shows it: with cents from a dollar on, with up to six decimals below a cent."""
    if amount == 0:
        return "$0"
    text = f"{amount:,.{2 if amount >= 1 else 4 if amount >= 0.01 else 6}f}"
    whole, _, decimals = text.partition(".")
    return f"${whole}.{decimals[:2]}{decimals[2:].rstrip('0')}"


def _busiest(gateway: Gateway) -> str:
    rows = gateway.admin("minutes", group_by="key").json["data"]
    return str(max(rows, key=lambda row: row["requests"])["key"])


def _failed_call(gateway: Gateway) -> dict[str, Any]:
    found: dict[str, Any] = gateway.admin("calls", limit="1", ended="error").json["data"][0]
    return found


def _row_of_the_failed(gateway: Gateway) -> str:
    return f"tr[data-name='{_failed_call(gateway)['id']}'] th a"


def _by_id(gateway: Gateway) -> str:
    return f"input[name=id] type={_failed_call(gateway)['id']}"


def _wrong(gateway: Gateway) -> str:
    problems = gateway.admin("problems").json["data"]
    return str(problems[0]["text"]) if problems else "Nothing is wrong"


def _last_minute(gateway: Gateway) -> str:
    rows = gateway.admin("minutes", group_by="minute").json["data"]
    return str(rows[-1]["minute"]).replace("T", " ")


def _usual_refusal(gateway: Gateway) -> str:
    rows = gateway.admin("refusals", since="1d", limit="1000").json["data"]
    ((code, number),) = Counter(row["code"] for row in rows).most_common(1)
    return f"{number}\n{code}"


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
             lambda _: "median"),
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

QUESTIONS += [
    Question(
        "lead",
        "What was spent this month?",
        [],
        "[data-figure=spend] .figure",
        lambda gateway: _usd(_money(gateway)["spent_usd"]),
    ),
    Question(
        "lead",
        "By whom?",
        ["[data-choice=key]"],
        f"{TABLE} tbody tr:first-child th",
        lambda gateway: _most(gateway, "key", "cost_usd"),
    ),
    Question(
        "lead",
        "What has each team spent of its budget?",
        [],
        ".answer-teams tr[data-name=crew] td",
        lambda gateway: _usd(next(row["spent_usd"] for row in _money(gateway)["teams"] if row["team"] == "crew")),
    ),
    Question(
        "lead",
        "What is the forecast, and in which range?",
        [],
        "[data-figure=spend]",
        lambda gateway: f"{_usd(_money(gateway)['low_usd'])} to {_usd(_money(gateway)['high_usd'])}",
    ),
    Question(
        "lead",
        "How many calls have no known cost?",
        [],
        "[data-figure=spend]",
        lambda gateway: f"Without {_money(gateway)['unpriced']} calls of unknown cost",
    ),
    Question("lead", "How much is estimated?", [], "[data-sum=estimated_tokens] small", lambda _: "of the tokens"),
    Question(
        "engineer",
        "Which key floods us now?",
        ["[data-choice='1h']", "[data-choice=key]", "[data-choice=requests]"],
        f"{TABLE} tbody tr:first-child th",
        _busiest,
    ),
    Question(
        "engineer",
        "Which calls of the last hour failed?",
        ["#nav a[href='#calls']", "select[name=since] option[value='1h']", "select[name=outcome] option[value=failed]"],
        "main table tbody tr:first-child td:nth-child(3)",
        lambda _: "502",
    ),
    Question(
        "engineer",
        "What became of this request?",
        ["#nav a[href='#calls']", _by_id, _row_of_the_failed],
        "dialog .facts",
        lambda gateway: str(_failed_call(gateway)["id"]),
    ),
    Question(
        "engineer",
        "How do I stop a key?",
        ["#nav a[href='#keys']", "main table tr[data-name=bob] th a", "dialog footer button text=Pause"],
        "dialog:last-of-type button.danger",
        lambda _: "Pause",
    ),
    Question(
        "engineer",
        "How do I give a key more today?",
        ["#nav a[href='#keys']", "main table tr[data-name=bob] th a", "dialog button text=Top up"],
        "dialog:last-of-type h2",
        lambda _: "Top up",
    ),
    Question(
        "engineer",
        "Are we near the limit of an upstream?",
        ["#nav a[href='#models']", "section[aria-labelledby=upstreams-title] tr[data-name=main] th a"],
        "dialog .quota[data-unit=requests]",
        lambda _: "6,000 requests",
    ),
    Question(
        "member", "How do I connect Codex?", ["[data-choice=codex]"], ".settings", lambda gateway: f"{gateway.url}/v1"
    ),
]
"""Those of 25 questions, written by a sceptic before looking, that are in no other words above."""

QUESTIONS += [
    Question(
        "engineer", "What is wrong now, and when was that looked at?", [], "section[aria-labelledby=now-title]", _wrong
    ),
    Question(
        "engineer",
        "In which minute was the last call?",
        ["[data-choice='1h']", "section[aria-labelledby=usage-title] details summary"],
        "section[aria-labelledby=usage-title] details tbody tr:first-child th",
        _last_minute,
    ),
    Question(
        "lead",
        "Which team had failed calls?",
        ["[data-choice=team]", "[data-choice=errors]"],
        f"{TABLE} tbody tr:first-child td:last-of-type",
        lambda _: "%",
    ),
    Question(
        "engineer",
        "Why does the gateway refuse most?",
        ["#nav a[href='#calls']"],
        "#refused li:first-child",
        _usual_refusal,
    ),
    Question(
        "lead",
        "What does a model cost?",
        ["#nav a[href='#models']"],
        f"main tr[data-name='{COMPLETIONS}']",
        lambda _: "$2",
    ),
    Question(
        "lead",
        "Which keys has the team crew?",
        ["#nav a[href='#keys']", "[data-choice=team]", "main table tr[data-name=crew] th a"],
        "dialog table a",
        lambda _: "alice",
    ),
    Question(
        "engineer",
        "How much did bob use in the last 7 days?",
        ["#nav a[href='#keys']", "main table tr[data-name=bob] th a", "dialog [data-choice='7d']"],
        "dialog [data-sum=requests] b",
        lambda gateway: str(_usage(gateway, "", 6, key="bob")[0]["requests"]),
    ),
    Question("lead", "Who am I here?", [], "#role", lambda _: "admin"),
    Question(
        "engineer",
        "How do I take the refusals with me?",
        ["#nav a[href='#calls']", "select[name=outcome] option[value=refused]"],
        "main .csv",
        lambda _: "Download (CSV)",
    ),
    Question("member", "How long do my answers take?", [], "[data-figure=first-token-p95]", lambda _: "median"),
    Question("member", "Whose page is this, and which team's?", [], "#role", lambda _: "alice \u00b7 key \u00b7 crew"),
]
"""What the page answers since it has minutes, problems and refusals by reason."""


def _bill(gateway: Gateway) -> dict[str, Any]:
    found: dict[str, Any] = gateway.admin("bills").json["upstreams"][0]
    return found


def _largest_cause(gateway: Gateway) -> str:
    causes = _bill(gateway)["causes"]
    return _signed(max(causes.values(), key=abs))


def _fullest_key(gateway: Gateway) -> str:
    rows = [row for row in gateway.admin("quotas").json["data"] if row["key"]]
    return str(max(rows, key=lambda row: (row["used"] + row["reserved"]) / row["limit"])["key"])


def _signed(amount: float) -> str:
    sign = "+" if amount > 0 else "\u2212"
    return f"{sign}{_usd(abs(amount))}"


def _row_of_the_largest_difference(gateway: Gateway) -> str:
    rows = gateway.admin("bills").json["data"]
    return f"main tr[data-name='{max(rows, key=lambda row: row['difference_usd'])['day']}'] .opener"


QUESTIONS += [
    Question("lead", "What do the providers bill, against our records?", ["#nav a[href='#bills']"],
             "[data-bill=main] [data-sum=difference_usd]", lambda gateway: _signed(_bill(gateway)["difference_usd"])),
    Question("lead", "Why does the bill differ most?", ["#nav a[href='#bills']"],
             "[data-bill=main] .causes li:first-child",
             _largest_cause),
    Question("engineer", "Since when does a bill differ, and where do I look?", [], "[data-problem=bill]",
             lambda _: "Days and causes"),
    Question("engineer", "Which model makes the difference of the worst day?",
             ["#nav a[href='#bills']", _row_of_the_largest_difference], "main .below table tbody tr:first-child th",
             lambda _: COMPLETIONS),
    Question("lead", "How long does the account last?", ["#nav a[href='#bills']"], "[data-account=main]",
             lambda _: "at the pace of the last 7 days"),
    Question("engineer", "Which price should be configured instead?", ["#nav a[href='#bills']"], ".proposed",
             lambda _: "input: 4, output: 8"),
    Question("lead", "Who spent what this month, for the accountant?",
             ["#nav a[href='#bills']", ".tabs a text=Statement"],
             "main tbody tr:first-child td:last-child",
             lambda gateway: _usd(gateway.admin("statement").json["spent"][0]["cost_usd"])),
    Question("lead", "Which keys are near a limit?", ["#nav a[href='#keys']", "[data-choice=near]"],
             "main table tbody tr:first-child th", _fullest_key),
    Question("lead", "Which model does each team use?", ["[data-choice=team]", "select[name=then] option[value=model]"],
             f"{TABLE} tbody tr:first-child td:nth-child(2)",
             lambda gateway: str(max(_usage(gateway, "team,model"), key=lambda row: row["cost_usd"] or 0)["model"])),
    Question("lead", "How much has each person spent?", ["#nav a[href='#keys']", "[data-choice=owner]"],
             "main table tbody tr:first-child th", lambda _: "no owner"),
]  # fmt: skip
"""What the page answers since it has bills, people and a second group."""


def walk(page: Page, question: Question, gateway: Gateway) -> None:
    """The clicks of a question."""
    assert len(question.clicks) <= MOST_CLICKS
    for click in question.clicks:
        css, _, typed = (click if isinstance(click, str) else click(gateway)).partition(" type=")
        css, _, text = css.partition(" text=")
        page.click(css, text)
        if typed:
            page.type(css, typed)
        page.until(lambda: not page.all("[aria-busy]"))  # what was asked for is there
