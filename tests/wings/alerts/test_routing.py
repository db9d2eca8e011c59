"""Which receiver gets an alert: a table of receivers and windows."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from gateway.wings.alerts.routing import Subject, addresses_of, subject_of, takes
from gateway.wings.alerts.settings import AlertReceiver

KEYS = {"k": ("red", "ann@example.org"), "free": (None, None)}
KNOWN = {"bob": "bob@example.org"}


@pytest.mark.parametrize(
    ("scope", "subject"),
    [
        ("gateway", Subject("gateway")),
        ("team:red", Subject("team", None, "red")),
        ("key:k", Subject("key", "k", "red", "ann@example.org")),
        ("key:unknown", Subject("key", "unknown")),
        ("person:bob", Subject("person", None, None, "bob")),
        ("member:red/bob", Subject("person", None, "red", "bob")),
        ("upstream:up", Subject("upstream_quota")),
        ("label:a=b", Subject("label")),
        ("team_tag:red/project=x/y", Subject("tag", None, "red")),
    ],
)
def test_whose_a_window_is(scope: str, subject: Subject) -> None:
    assert subject_of(scope, KEYS) == subject


ALL = ["gateway", "team:red", "team:blue", "key:k", "key:free", "person:bob", "member:red/bob", "upstream:up"]


@pytest.mark.parametrize(
    ("settings", "taken"),
    [
        ({}, ALL),
        ({"kinds": ["team"]}, ["team:red", "team:blue"]),
        ({"teams": ["red"]}, ["team:red", "key:k", "member:red/bob"]),
        ({"teams": ["r*", "blue"], "kinds": ["team", "gateway"]}, ["team:red", "team:blue"]),
        ({"owners": ["*@example.org"]}, ["key:k"]),
        ({"owners": ["bob"]}, ["person:bob", "member:red/bob"]),
        ({"keys": ["f*"]}, ["key:free"]),
        ({"kinds": ["upstream", "store", "ledger"]}, []),
        ({"form": "pagerduty", "routing_key": "r"}, []),
        ({"form": "pagerduty", "routing_key": "r", "kinds": ["gateway"]}, ["gateway"]),
        ({"webhook": None, "email": ["owner"]}, ["key:k", "person:bob", "member:red/bob"]),
        (
            {"webhook": None, "email": ["owner", "ops@example.org"], "teams": ["red"]},
            ["team:red", "key:k", "member:red/bob"],
        ),
    ],
)  # fmt: skip
def test_what_a_receiver_takes(settings: dict[str, Any], taken: list[str]) -> None:
    receiver = AlertReceiver.model_validate({"webhook": "https://hooks.example.com", **settings})
    assert [scope for scope in ALL if takes(receiver, subject_of(scope, KEYS), KNOWN)] == taken


def test_incidents_go_to_who_wants_them() -> None:
    pager = AlertReceiver(form="pagerduty", routing_key=SecretStr("r"))
    assert [takes(pager, Subject(kind), {}) for kind in ("upstream", "store", "ledger")] == [True] * 3
    assert not takes(AlertReceiver(webhook=SecretStr("http://x")), Subject("store"), {})


def test_addresses() -> None:
    receiver = AlertReceiver(email=("owner", "ann@example.org"))
    assert addresses_of(receiver, Subject("key", owner="ann@example.org"), {}) == ["ann@example.org"]
    assert addresses_of(receiver, Subject("key", owner="bob"), KNOWN) == ["bob@example.org", "ann@example.org"]
    assert addresses_of(receiver, Subject("key", owner="no address"), KNOWN) == ["ann@example.org"]


BAD = ["a@", "a@[", ".@b", "=?utf-8?q?=0aBcc=3ax?=@b", "ü@b", '"a@b', "a@b,c", "a@b>", "a @b", "@b", "a@b@c"]


@pytest.mark.parametrize("name", BAD)
def test_a_name_that_is_no_plain_address_gets_no_mail(name: str) -> None:
    """The others in the same mail get it."""
    receiver = AlertReceiver.model_validate({"email": ["ops@example.org", "owner"]})
    assert addresses_of(receiver, Subject("key", owner=name), {}) == ["ops@example.org"]
    assert addresses_of(receiver, Subject("key", owner="o'neil+x@example.org"), {})[1:] == ["o'neil+x@example.org"]
