"""Every setting that names a person binds her however her name is written: case and Unicode form do not count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.api import auth
from gateway.config import Config, build
from gateway.quota.scopes import person_scope
from gateway.wings.alerts.routing import Subject, addresses_of, takes
from gateway.wings.alerts.settings import AlertSettings
from gateway.wings.cheaper.amending import CheaperModels
from gateway.wings.cheaper.settings import CheaperSettings
from gateway.wings.leavers.policy import is_exempt
from gateway.wings.leavers.settings import LeaverSettings
from tests.test_docs import settings

WORDS = {"people", "person", "owner", "owners", "exempt", "addresses"}
"""What settings with names of people are called."""

CLAIMS = {"oidc.person_claim", "jwt.person_claim", "scim.person", "oidc.roles[].person"}
"""The first three name the attribute with her name. A role is given by the name exactly as the provider writes it."""

STEP = {"share": "80%", "use": "m"}
WRITTEN = ("Ann.Mu\u0308ller@Example.org", "ann.m\u00fcller@example.org")
"""One person, decomposed and in capitals, and as most providers write her."""


def config(name: str, **more: Any) -> Config:
    return build({
        "upstreams": {"up": {"base_url": "https://api.openai.com/v1", "api_key": "sk-1"}},
        "models": {"m": {"routes": [{"upstream": "up"}], "max_output_tokens": 9}},
        "keys": [{"id": "k", "secret": "sk-gw-k-0123456789abcdef", "owner": name}],
        **more,
    })  # fmt: skip


def owner(name: str) -> str:
    """The name that a call of this person's key has."""
    found = auth.read(config(name).keys[0]).owner
    assert found is not None
    return found


def is_limited(named: str, called: str) -> bool:
    return owner(called) in config(named, people={named: {"max_parallel": 1}}).people


def is_steered(named: str, called: str) -> bool:
    made = config(named, when_above={"people": {named: [STEP]}}).section(CheaperSettings)
    return person_scope(called) in CheaperModels(made)._steps_of(auth.read(config(called).keys[0]), {})


def is_taken(named: str, called: str) -> bool:
    receivers = {"one": {"webhook": "https://hooks.example.com", "owners": [named]}}
    (receiver,) = config(named, alerts={"receivers": receivers}).section(AlertSettings).receivers.values()
    return takes(receiver, Subject("key", "k", None, owner(called)), {})


def is_mailed(named: str, called: str) -> bool:
    alerts = {"receivers": {"one": {"email": ["owner"]}}, "addresses": {named: "ann@mail.example.org"}}
    made = config(named, alerts=alerts).section(AlertSettings)
    subjects = [Subject("key", owner=name) for name in (called, owner(called))]
    found = [addresses_of(made.receivers["one"], each, made.addresses) for each in subjects]
    return found == [["ann@mail.example.org"]] * 2


def is_spared(named: str, called: str) -> bool:
    return is_exempt(owner(called), config(named, leavers={"exempt": [named]}).section(LeaverSettings))


PLACES: dict[str, Callable[[str, str], bool]] = {
    "keys[].owner": lambda named, called: owner(named) == owner(called),
    "people": is_limited,
    "when_above.people": is_steered,
    "alerts.receivers.NAME.owners": is_taken,
    "alerts.addresses": is_mailed,
    "leavers.exempt": is_spared,
}


def test_every_setting_with_names_of_people_is_here() -> None:
    found = set()
    for path in settings():
        parts = path.split(".")
        at = next((place for place, part in enumerate(parts) if part.removesuffix("_claim") in WORDS), None)
        if at is not None:
            found.add(".".join(parts[: at + 1]))
    assert found == {*PLACES, *CLAIMS}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("named", "called"), [WRITTEN, WRITTEN[::-1]])
def test_neither_case_nor_unicode_form_counts(place: str, named: str, called: str) -> None:
    assert PLACES[place](named, called)
    assert not PLACES[place](named, "bob@example.org")
