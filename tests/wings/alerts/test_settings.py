"""The section `alerts`: its faults, its warnings, and what a reload shows of its changes."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from gateway.config import build, resolve
from gateway.config.diff import changes
from gateway.config.wings import whole_file
from gateway.wings.alerts.settings import AlertSettings
from tests.config.test_changes import HIDDEN, Edit, shows_no_secret
from tests.config.test_config import has_plain_faults, has_the_faults_that_it_names
from tests.config.test_probable_mistakes import values_with, warned

BAD = sorted((Path(__file__).parent / "bad").glob("*.yaml"))


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_mistake(path: Path) -> None:
    has_the_faults_that_it_names(path)
    has_plain_faults(path)


def test_the_section_is_part_of_the_file() -> None:
    assert "alerts" in whole_file().model_fields
    config = build(values_with(alerts={"webhook": "https://hooks.example.com/x"}))
    assert config.section(AlertSettings).shown_webhook == "https://hooks.example.com"
    assert build(values_with()).section(AlertSettings) == AlertSettings()


SMTP = {"host": "mail.example.org", "sender": "gateway@example.org"}
MAILED = {"a": {"email": ["a@example.org"]}}
HOOK = {"webhook": "https://hooks.example.com/x"}


def with_smtp(**settings: Any) -> dict[str, Any]:
    return {"alerts": {"smtp": {**SMTP, **settings}, "receivers": MAILED}}


MISTAKES: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "a proxy of nothing",
        {"alerts": {"proxy": "http://proxy:3128"}},
        "alerts.proxy",
        "no effect without alerts.webhook",
    ),
    (
        "mail without a server",
        {"alerts": {"receivers": {"a": {"email": ["a@b.de"]}}}},
        "alerts.receivers.a.email",
        "smtp is not set",
    ),
    ("a server without mail", {"alerts": {"smtp": SMTP}}, "alerts.smtp", "no receiver has email"),
    (
        "the name of the first webhook",
        {"alerts": {"webhook": "https://a.example", "receivers": {"webhook": HOOK}}},
        "alerts.receivers.webhook",
        "name it otherwise",
    ),
    (
        "an unknown team",
        {"alerts": {"receivers": {"a": {**HOOK, "teams": ["x"]}}}},
        "alerts.receivers.a.teams[0]",
        "no team",
    ),
    (
        "teams of incidents",
        {"alerts": {"receivers": {"a": {**HOOK, "kinds": ["store"], "owners": ["x"]}}}},
        "alerts.receivers.a.owners",
        "have none of these",
    ),
    (
        "an owner of nothing",
        {"alerts": {"smtp": SMTP, "receivers": {"a": {"email": ["owner"], "kinds": ["gateway"]}}}},
        "alerts.receivers.a.email",
        "owner has no effect",
    ),
    (
        "a password in plain text",
        with_smtp(security="none", username="a", password="b"),
        "alerts.smtp.security",
        "in plain text",
    ),
    ("a name without a password", with_smtp(username="a"), "alerts.smtp", "does not sign in"),
    ("starttls at the port of tls", with_smtp(port=465), "alerts.smtp.security", "port 465 is usually tls"),
    ("tls at the port of starttls", with_smtp(security="tls"), "alerts.smtp.security", "port 587 is usually starttls"),
    (
        "a receiver of rates",
        {"alerts": {"receivers": {"a": HOOK}}, "quotas": ["5 requests/minute"]},
        "alerts.receivers.a",
        "nothing is ever sent",
    ),
    (
        "alerts of rates",
        {"alerts": {"webhook": "https://hooks.example.com/x"}, "quotas": ["5 requests/minute"]},
        "alerts.webhook",
        "nothing is ever sent",
    ),
]


@pytest.mark.parametrize(("changes", "path", "says"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES])
def test_what_cannot_work_has_a_warning(changes: dict[str, Any], path: str, says: str) -> None:
    (warning,) = warned(**changes)
    assert warning.path == path
    assert says in warning.message


def test_a_webhook_with_a_quota_of_a_week_has_no_warning() -> None:
    assert warned(alerts={"webhook": "https://hooks.example.com/x"}, quotas=["5 requests/week"]) == []


SECRETS: list[tuple[str, Edit]] = [
    ("alerts.webhook", lambda v: v.update(alerts={"webhook": f"https://hooks.example.com/{HIDDEN}"})),
    ("alerts.proxy", lambda v: v.update(alerts={"proxy": f"http://user:{HIDDEN}@proxy:3128"})),
]


@pytest.mark.parametrize(("path", "edit"), SECRETS, ids=[row[0] for row in SECRETS])
def test_a_secret_is_never_shown(path: str, edit: Edit) -> None:
    shows_no_secret(path, edit)


def test_the_proxy_of_the_environment_is_for_every_address() -> None:
    text = """
upstreams: {up: {base_url: "https://api.example.com/v1", proxy: ""}}
models: {m: {routes: [{upstream: up}], max_output_tokens: 100}}
alerts:
  webhook: https://hooks.example.com/x
  smtp: {host: mail.example.org, sender: gateway@example.org}
  receivers:
    chat: {webhook: "https://hooks.example.com/y"}
    here: {webhook: "https://hooks.internal/y", proxy: ""}
    pager: {form: pagerduty, routing_key: r}
    people: {email: [a@example.org]}
"""
    alerts = build(resolve(text, {"https_proxy": "http://proxy:3128"}).values).section(AlertSettings)
    ways = {name: str(each.way) for name, each in alerts.all_receivers.items()}
    assert ways == {
        "webhook": "proxy:3128", "chat": "proxy:3128", "here": "None", "pager": "proxy:3128", "people": "None",
    }  # fmt: skip


@pytest.mark.parametrize("written", [["50%", "80 %", 100], [100, 80, "50%", 50]])
def test_shares_are_written_with_and_without_a_sign(written: list[Any]) -> None:
    assert build(values_with(alerts={"at": written})).section(AlertSettings).at == (50, 80, 100)


@pytest.mark.parametrize(
    ("setting", "old", "new"),
    [
        ("webhook", "https://hooks.example.com/one", f"https://hooks.example.com/{HIDDEN}"),
        ("proxy", "http://user:one@proxy:3128", f"http://user:{HIDDEN}@proxy:3128"),
        ("secret", f"whsec_{b64encode(b'one' * 8).decode()}", f"whsec_{b64encode(HIDDEN.encode() * 2)[:44].decode()}"),
        ("routing_key", "one", HIDDEN),
    ],
)
def test_a_secret_of_a_receiver_is_never_shown(setting: str, old: str, new: str) -> None:
    form = {"form": "pagerduty"} if setting == "routing_key" else {}
    made = [build(values_with(alerts={"receivers": {"a": {**HOOK, **form, setting: each}}})) for each in (old, new)]
    assert [str(each) for each in changes(*made)] == [f"alerts.receivers.a.{setting}: (secret) changed"]
    assert new not in "".join([repr(config) for config in made])


def test_the_password_is_never_shown() -> None:
    made = [build(values_with(**with_smtp(username="a", password=each))) for each in ("one", HIDDEN)]
    assert [str(each) for each in changes(*made)] == ["alerts.smtp.password: (secret) changed"]
    assert HIDDEN not in repr(made)
