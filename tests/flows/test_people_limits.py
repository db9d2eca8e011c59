"""A person has one budget: whatever key, token or team she calls with, the windows of hers are the same ones."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gateway.api import auth
from gateway.config import ConfigError, build
from gateway.quota.issued import Overlay, TopUp
from gateway.quota.scopes import SCOPES, holder, member_of, member_scope, person_scope, scope_kind
from gateway.quota.window_status import binding_windows, own_windows, shared_windows
from gateway.quota.windows import LimitTable
from gateway.records import Key
from tests.flows.gateway_process import key

NOW = 1_795_226_400.0
ANN, BOB = "ann@example.org", "bob"
DAILY = [{"requests": 100, "per": "day"}]
OTHER_SETTINGS: list[dict[str, Any]] = [
    {"quotas": ["60 requests/minute"]}, {"quotas": ["1M tokens/90s"]}, {"quotas": ["5 USD/week:gpt-4*"]},
    {"quotas": ["30 USD/month"]}, {"max_parallel": 3}, {"quotas": DAILY, "on_exceeded": "shadow"},
]  # fmt: skip


def table(overlays: dict[str, Overlay] | None = None, **settings: Any) -> LimitTable:
    plain = {
        "upstreams": {"up": {"base_url": "http://127.0.0.1:9/v1"}},
        "models": {"m": {"routes": [{"upstream": "up"}], "max_output_tokens": 10, "price": {"input": 1, "output": 2}}},
    }
    made = build(plain | settings)
    return LimitTable(made.quotas, made.teams, overlays or {}, made.people)


def limits(terms: LimitTable, of: Key) -> dict[str, int]:
    return {f"{each.scope} {each.unit} {each.per}": each.window(NOW).limit for each in terms.of(of)}


@pytest.mark.parametrize("settings", [{"quotas": DAILY}, *OTHER_SETTINGS])
def test_every_key_of_a_person_draws_on_the_same_windows(settings: dict[str, Any]) -> None:
    terms = table(people={ANN: settings}, teams={"red": {}, "blue": {}})
    keys = [Key("laptop", owner=ANN), Key("ci", team="red", owner=ANN), Key("made", team="blue", owner=ANN)]
    drawn = [[each.window(NOW) for each in terms.of(one)] for one in keys]
    assert drawn[0]
    assert drawn[1:] == drawn[:-1]
    assert {each.scope for each in drawn[0]} == {f"person:{ANN}"}
    assert {each.is_enforced for each in drawn[0]} == {settings.get("on_exceeded") != "shadow"}
    assert list(terms.of(Key("other", owner=BOB))) == list(terms.of(Key("nobodys"))) == []


def test_her_own_quotas_count_before_those_of_her_role_and_those_of_everyone() -> None:
    people: dict[str, Any] = {
        name: {"quotas": [{"requests": limit, "per": "day"}]}
        for name, limit in (("defaults", 1), ("role:lead", 2), (ANN, 4))
    }
    given = table().of(Key("none", owner=ANN))
    assert given == ()
    terms = table(people=people)
    name = "person:{} requests day".format
    assert limits(terms, Key("k", owner=BOB)) == {name(BOB): 1}
    assert limits(terms, Key("k", owner=ANN)) == {name(ANN): 4}
    as_lead = table({person_scope(BOB): Overlay(role="lead"), person_scope(ANN): Overlay(role="lead")}, people=people)
    assert limits(as_lead, Key("k", owner=BOB)) == {name(BOB): 2}
    assert limits(as_lead, Key("k", owner=ANN)) == {name(ANN): 4}
    (three,) = build({**_least(), "quotas": ["3 requests/day"]}).quotas
    at_run_time = table({person_scope(BOB): Overlay(role="lead", quotas=(three,))}, people=people)
    assert limits(at_run_time, Key("k", owner=BOB)) == {name(BOB): 3}


def _least() -> dict[str, Any]:
    return {
        "upstreams": {"up": {"base_url": "http://127.0.0.1:9/v1"}},
        "models": {"m": {"routes": [{"upstream": "up"}]}},
    }


def test_a_team_limits_each_of_its_members_by_her_keys_there() -> None:
    terms = table(teams={"red": {"member_quotas": DAILY}, "blue": {}})
    scopes = {name: [each.scope for each in terms.of(one)] for name, one in {
        "ann": Key("a", team="red", owner=ANN), "bob": Key("b", team="red", owner=BOB),
        "elsewhere": Key("c", team="blue", owner=ANN), "nobody": Key("d", team="red"),
    }.items()}  # fmt: skip
    assert scopes == {"ann": [f"member:red/{ANN}"], "bob": ["member:red/bob"], "elsewhere": [], "nobody": []}


def test_a_key_with_another_owner_draws_on_other_windows() -> None:
    """A key that changes its owner draws on other windows from then on: none of the windows is moved or shared."""
    terms = table(people={"defaults": {"quotas": DAILY, "max_parallel": 2}}, teams={"red": {"member_quotas": DAILY}})
    before, after = [{each.window(NOW).id for each in terms.of(Key("k", team="red", owner=who))} for who in (ANN, BOB)]
    assert before
    assert not before & after


def test_a_top_up_raises_the_window_of_all_her_keys() -> None:
    more = TopUp("requests", "day", None, "2026-11-21", 50)
    terms = table({person_scope(ANN): Overlay(top_ups=(more,))}, people={"defaults": {"quotas": DAILY}})
    assert [limits(terms, Key(name, owner=ANN)) for name in "ab"] == [{f"person:{ANN} requests day": 150}] * 2
    assert limits(terms, Key("c", owner=BOB)) == {"person:bob requests day": 100}


def test_each_window_of_a_person_is_shown_once() -> None:
    terms = table(people={ANN: {"quotas": DAILY}}, teams={"red": {"member_quotas": DAILY}})
    keys = [Key("a", team="red", owner=ANN), Key("b", team="red", owner=ANN), Key("c", owner=ANN)]
    shown = [*shared_windows(terms, NOW), *own_windows(terms, keys, NOW)]
    assert [(each.window.scope, each.key, each.team, each.person) for each in shown] == [
        (f"person:{ANN}", None, None, ANN), (f"member:red/{ANN}", None, "red", ANN),
    ]  # fmt: skip
    for one in keys:
        assert {each.window for each in binding_windows(terms, one, NOW)} <= {each.window for each in shown}


ODD_NAMES = ("ann", "ann@example.org", "auth0|12/3", "a:b", "ŝ é;", 'x"y')


@pytest.mark.parametrize(("team", "person"), [*itertools.product(("red", "a:b"), ODD_NAMES)])
def test_a_scope_leads_back_to_its_owner(team: str, person: str) -> None:
    assert member_of(person_scope(person)) == (None, person)
    assert member_of(member_scope(team, person)) == (team, person)
    terms = table(people={"defaults": {"quotas": DAILY}}, teams={team: {"member_quotas": DAILY, "quotas": DAILY}})
    for each in terms.of(Key("k", team=team, owner=person)):
        assert scope_kind(each.scope) in SCOPES.values()
        assert each.window(NOW) in [one.window(NOW) for one in terms.of(holder(each.scope))]


def test_what_an_overlay_keeps_of_a_person_is_read_again() -> None:
    (quota,) = build({**_least(), "quotas": ["3.50 USD/month:other*"]}).quotas
    for overlay in (Overlay(), Overlay(7.0, quotas=(quota,), role="lead"), Overlay(quotas=())):
        assert Overlay.decode(overlay.encode()) == overlay
    assert "quotas" not in Overlay(revoked_at=1.0).encode()  # read by the version before, too


@pytest.mark.parametrize(
    ("settings", "place", "words"),
    [
        ({"people": {"default": {}}}, "people", "default is no person"),
        ({"people": {"role:boss": {}}}, "people", "role:operator"),
        ({"people": {ANN: {"quotas": [*DAILY, *DAILY]}}}, f'people."{ANN}".quotas[1]', "counts the same"),
        ({"people": {"x" * 257: {}}}, "people", "at most 256"),
        ({"teams": {"a/b": {"member_quotas": DAILY}}}, "member_quotas", "'/'"),
        ({"teams": {"a": {"member_quotas": ["1 token/day"]}}}, "member_quotas", "max_output_tokens"),
    ],
)
def test_a_mistake_is_named(settings: dict[str, Any], place: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        build({**_least(), **settings})
    text = "\n".join(map(str, error.value.faults))
    assert place in text
    assert words in text


def test_the_owner_of_a_key_of_the_file_is_known_to_its_calls() -> None:
    made = build({**_least(), "keys": [key("laptop", owner=ANN)]})
    assert [each.owner for each in auth.index(made.keys).values()] == [ANN]
