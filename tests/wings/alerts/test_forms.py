"""The form of each receiver is that of its documentation; a name that others choose makes no mention and no link."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.wings.alerts import policy
from gateway.wings.alerts.forms import MAX_DEDUP_KEY, Notice, body_of
from gateway.wings.alerts.routing import Subject
from gateway.wings.alerts.settings import AlertReceiver
from tests.store.changes import Clock, money
from tests.wings.alerts.test_policy import standing

HOOK = SecretStr("https://hooks.example.com/x")
PAGER = AlertReceiver(form="pagerduty", routing_key=SecretStr("r" * 32))
EVIL = "team:<!channel> [x](http://evil) @all"


def spent(scope: str = "key:k", level: int = 1) -> Notice:
    """The notice of a quota: 0 is 80 %, 1 is 100 %."""
    alert = policy.reached([standing(money(10**10, scope=scope).window, 10**10)], (), int(Clock().now * 1e6))[level]
    facts = policy.message(alert, Clock().now, "acme", None)
    return Notice(Subject(scope.partition(":")[0]), policy.sentence(alert), facts, alert.name)


def incident(kind: str = "upstream", *, is_over: bool = False) -> Notice:
    return Notice(Subject(kind), "It fails.", {"gateway": "acme", "type": "incident"}, f"{kind}/up", is_over)


def body(notice: Notice, form: Any) -> dict[str, Any]:
    made = body_of(notice, AlertReceiver(webhook=HOOK, form=form), {})
    json.dumps(made)
    return made


def test_json_has_the_facts() -> None:
    assert body(spent(), "json") == spent().facts


def test_slack_has_text_for_the_notification_and_blocks() -> None:
    made = body(spent(), "slack")
    section, context = made["blocks"]
    assert made["text"] == section["text"]["text"] == spent().text
    assert (section["type"], section["text"]["type"]) == ("section", "mrkdwn")
    assert context["elements"][0]["type"] == "plain_text"
    assert "limit: 10" in context["elements"][0]["text"]


def test_teams_has_a_message_with_an_adaptive_card() -> None:
    made = body(spent(), "teams")
    (attachment,) = made["attachments"]
    assert (made["type"], attachment["contentType"]) == ("message", "application/vnd.microsoft.card.adaptive")
    card = attachment["content"]
    assert card["type"] == "AdaptiveCard"
    assert [each["type"] for each in card["body"]] == ["TextBlock", "FactSet"]
    assert {"title": "unit", "value": "usd"} in card["body"][1]["facts"]


@pytest.mark.parametrize("form", ["slack", "mattermost", "teams"])
def test_a_name_makes_no_mention_and_no_link(form: str) -> None:
    made = body(spent(EVIL), form)
    if form == "slack":  # whose plain_text has neither
        assert "<" not in made["text"] + made["blocks"][0]["text"]["text"]
    else:
        shown = json.dumps(made, ensure_ascii=False)
        assert "@all" not in shown
        assert "[x](http" not in shown


def test_a_very_long_name_is_cut_for_slack() -> None:
    made = body(Notice(Subject("team"), "<" * 10_000, {"text": "", "team": "x" * 10_000}, "n"), "slack")
    assert len(made["blocks"][0]["text"]["text"]) <= 3000
    assert len(made["blocks"][1]["elements"][0]["text"]) <= 3000


def test_pagerduty_is_triggered_and_resolved_with_one_key() -> None:
    begin, end = body_of(incident(), PAGER, {}), body_of(incident(is_over=True), PAGER, {})
    assert begin.pop("payload") == {
        "summary": "It fails.", "source": "acme", "severity": "error", "component": "completions-gateway",
        "class": "upstream", "custom_details": {"gateway": "acme"},
    }  # fmt: skip
    key = {"routing_key": "r" * 32, "dedup_key": "completions-gateway/acme/upstream/up"}
    assert begin == key | {"event_action": "trigger"}
    assert end == key | {"event_action": "resolve"}


@pytest.mark.parametrize(
    ("notice", "severity"),
    [(incident("store"), "critical"), (incident("ledger"), "warning"), (spent(level=0), "info"), (spent(), "warning")],
)
def test_severities(notice: Notice, severity: str) -> None:
    assert body_of(notice, PAGER, {})["payload"]["severity"] == severity


def test_what_pagerduty_would_refuse_is_cut() -> None:
    made = body_of(Notice(Subject("key"), "x" * 5000, {"gateway": "acme"}, "n" * 500), PAGER, {})
    assert len(made["dedup_key"]) <= MAX_DEDUP_KEY
    assert len(made["payload"]["summary"]) == 1024


def test_a_mail_has_its_addresses_a_subject_and_the_facts() -> None:
    receiver = AlertReceiver(email=("owner", "leads@example.org"))
    notice = spent()._replace(subject=Subject("key", "k", "red", "ann"))
    made = body_of(notice, receiver, {"ann": "ann@example.org"})
    assert made["to"] == ["ann@example.org", "leads@example.org"]
    assert made["subject"] == "100 % of a quota: key k used $10.00 of $10.00 in the day 2026-11-20"
    assert made["text"].startswith(notice.text)
    assert "limit: 10\n" in made["text"]
