"""Each value of a label has windows of its own: which value a call has, and which window that leads to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.api.json_document import parse
from gateway.config import ConfigError, Model, Route, build
from gateway.config.issued import read_key, read_team
from gateway.config.probable_mistakes import warnings_of
from gateway.quota import labels
from gateway.quota.issued import Overlay, SeenValues, TopUp
from gateway.quota.labels import MAX_VALUES, MAX_VALUES_OF_A_KEY, with_value
from gateway.quota.notation import merged_quotas, read_quota
from gateway.quota.scopes import format_scope, holder, label_scope, member_of, tag_scope, value_scope
from gateway.quota.window_status import own_windows, shared_windows
from gateway.quota.windows import LimitTable
from gateway.records import TAG_SEPARATOR, Call, Key, Params

NOW = 1_795_226_400.0
MONTH = "2026-11"
CENTER: dict[str, Any] = {"usd": 5, "per": "month", "label": "cost-center"}
LEAST: dict[str, Any] = {
    "upstreams": {"up": {"base_url": "http://127.0.0.1:9/v1"}},
    "models": {"m": {"routes": [{"upstream": "up"}], "max_output_tokens": 10, "price": {"input": 1, "output": 2}}},
}


def table(overlays: Mapping[str, Overlay] | None = None, **settings: Any) -> LimitTable:
    made = build({**LEAST, **settings})
    return LimitTable(made.quotas, made.teams, overlays or {}, made.people)


def a_call(key: Key, **tags: str) -> Call:
    params, model = Params(parse(b'{"model": "m"}'), "m"), Model(routes=(Route(upstream="up"),))
    text = TAG_SEPARATOR.join([f"{name.replace('_', '-')}={value}" for name, value in sorted(tags.items())])
    return Call("c", NOW, key, "chat", params, model, label_model="m", arrived=0.0, tags=text)


def scopes(terms: LimitTable, call: Call) -> list[str]:
    return [limit.scope for limit in terms.of_call(call).each]


def seen(*values: str) -> Overlay:
    return Overlay(seen=SeenValues(MONTH, dict.fromkeys(values, "k")))


def test_the_value_is_that_of_the_keys_label_else_of_the_tag() -> None:
    terms = table({"tag:cost-center": seen("web", "ops")}, quotas=[CENTER, "9 USD/month"])
    plain, labelled = Key("a"), Key("b", labels=(("cost-center", "ops"), ("else", "x")))
    assert scopes(terms, a_call(plain)) == ["gateway"]
    assert scopes(terms, a_call(plain, cost_center="web", other="y")) == ["gateway", "tag:cost-center=web"]
    assert scopes(terms, a_call(plain, cost_center="ops")) == ["gateway", "tag:cost-center=ops"]
    for call in (a_call(labelled), a_call(labelled, cost_center="web")):
        assert scopes(terms, call) == ["gateway", "label:cost-center=ops"]


def test_a_team_has_values_of_its_own() -> None:
    overlays = {"tag:cost-center": seen("web"), "team_tag:red/cost-center": seen("web")}
    terms = table(overlays, quotas=[CENTER], teams={"red": {"quotas": [CENTER, "1 USD/day"]}, "blue": {}})
    both = ["team_tag:red/cost-center=web", "tag:cost-center=web"]
    others = {("team_tag:red/cost-center", "red"), ("tag:cost-center", None)}
    assert scopes(terms, a_call(Key("a", team="red"), cost_center="web")) == ["team:red", *both]
    assert scopes(terms, a_call(Key("b", team="blue"), cost_center="web")) == both[1:]
    shown = [(each.window.scope, each.team) for each in shared_windows(terms, NOW)]
    assert set(shown) == {("team:red", "red"), (both[0], "red"), (both[1], None)} | others
    own = Key("c", team="red", labels=(("cost-center", "x|=/y"),))
    assert [each.window.scope for each in own_windows(terms, [own, own], NOW)] == [
        "team_label:red/cost-center=x|=/y", "label:cost-center=x|=/y",
    ]  # fmt: skip


def test_values_that_are_not_noted_share_one_window() -> None:
    """No value of a tag has its name: `other` is a value like any, and none is empty."""
    full = SeenValues(MONTH, {str(number): str(number) for number in range(MAX_VALUES)})
    terms = table({"tag:cost-center": Overlay(seen=full)}, quotas=[CENTER])
    for value in ("new", "newer", "other"):
        call = a_call(Key("a"), cost_center=value)
        assert scopes(terms, call) == ["tag:cost-center"]
        assert terms.labels.unknown(call, MONTH) == []
    assert scopes(terms, a_call(Key("a"), cost_center="7")) == ["tag:cost-center=7"]
    terms = table({"tag:cost-center": seen("other")}, quotas=[CENTER])
    assert scopes(terms, a_call(Key("a"), cost_center="other")) == ["tag:cost-center=other"]
    for noted in (terms, table(quotas=[CENTER])):
        assert "tag:cost-center" in [each.window.scope for each in shared_windows(noted, NOW)]


def test_a_value_is_noted_once_in_a_month() -> None:
    terms = table({"tag:cost-center": seen("web")}, quotas=[CENTER])
    assert terms.labels.unknown(a_call(Key("a"), cost_center="web"), MONTH) == []
    assert terms.labels.unknown(a_call(Key("a"), cost_center="api"), MONTH) == [("tag:cost-center", "api")]
    assert terms.labels.unknown(a_call(Key("a", labels=(("cost-center", "x"),)), cost_center="api"), MONTH) == []
    assert terms.labels.unknown(a_call(Key("a"), cost_center="web"), "2026-12") == [("tag:cost-center", "web")]


def test_one_key_does_not_use_up_the_values_of_all() -> None:
    values = [str(number) for number in range(MAX_VALUES_OF_A_KEY)]
    terms = table({"tag:cost-center": seen(*values)}, quotas=[CENTER])
    assert terms.labels.unknown(a_call(Key("k"), cost_center="new"), MONTH) == []
    assert scopes(terms, a_call(Key("k"), cost_center="new")) == ["tag:cost-center"]
    assert scopes(terms, a_call(Key("k"), cost_center="7")) == ["tag:cost-center=7"]
    assert terms.labels.unknown(a_call(Key("another"), cost_center="new"), MONTH) == [("tag:cost-center", "new")]
    assert terms.labels.unknown(a_call(Key("k"), cost_center="new"), "2026-12") == [("tag:cost-center", "new")]


def test_the_values_of_tags_that_count_for_a_key() -> None:
    """Those that it brought first and those that it asks for, as far as there is a place, where it has no label."""
    quotas = [CENTER, {"requests": 1, "per": "day", "label": "stage"}]
    overlays = {"tag:cost-center": Overlay(seen=SeenValues(MONTH, {"web": "k", "api": "another"}))}
    terms = table(overlays, quotas=quotas, teams={"red": {"quotas": [CENTER]}})

    def shown(key: Key, **tags: str) -> list[str]:
        return list(terms.labels.of_tags_of(key, a_call(key, **tags).tags, MONTH))

    assert shown(Key("k")) == ["tag:cost-center=web"]
    assert shown(Key("k"), cost_center="api", stage="live", other="x") == [
        "tag:cost-center=api", "tag:cost-center=web", "tag:stage=live",
    ]  # fmt: skip
    assert shown(Key("c", labels=(("stage", "test"),)), stage="live") == []
    assert shown(Key("c", team="red"), cost_center="web") == ["team_tag:red/cost-center=web", "tag:cost-center=web"]
    full = SeenValues(MONTH, {str(number): str(number) for number in range(MAX_VALUES)})
    terms = table({"tag:cost-center": Overlay(seen=full)}, quotas=quotas)
    assert shown(Key("7"), cost_center="new") == ["tag:cost-center=7", "tag:cost-center"]


@pytest.mark.parametrize(
    ("known", "value", "month", "after"),
    [
        (("", ""), "a", MONTH, {"a": "k"}), ((MONTH, "a"), "b", MONTH, {"a": "j", "b": "k"}),
        ((MONTH, "a"), "a", MONTH, None), ((MONTH, "a"), "b", "2026-12", {"b": "k"}), ((MONTH, "ab"), "c", MONTH, None),
        (("2026-12", "a"), "b", MONTH, {"a": "j", "b": "k"}), (("", ""), "other", MONTH, {"other": "k"}),
    ],
)  # fmt: skip
def test_how_the_noted_values_grow(
    known: tuple[str, str],
    value: str,
    month: str,
    after: dict[str, str] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(labels, "MAX_VALUES", 2)
    grown = with_value(SeenValues(known[0], dict.fromkeys(known[1], "j")), value, "k", month)
    assert (None if grown is None else grown.values) == after
    assert grown is None or grown.month == max(known[0], month)


@pytest.mark.parametrize("value", ["web", "a=b", "a/b", "x|y", "ŝ é;", "a:b"])
@pytest.mark.parametrize("team", [None, "red"])
@pytest.mark.parametrize("scope_of", [label_scope, tag_scope])
def test_a_scope_leads_back_to_its_value(
    team: str | None, value: str, scope_of: Callable[[str | None, str], str]
) -> None:
    scope = value_scope(scope_of(team, "cost-center"), value)
    assert holder(scope) == Key("", team=team, labels=(("cost-center", value),))
    assert member_of(scope) == (team, None)
    assert f"cost-center={value}" in format_scope(scope)
    terms = table(quotas=[CENTER], teams={"red": {"quotas": [CENTER]}})
    assert [limit.scope for limit in terms.of_scope(scope)] == [scope]


@pytest.mark.parametrize("kind", ["label:cost-center=", "tag:cost-center="])
def test_a_top_up_is_of_one_value(kind: str) -> None:
    more = TopUp("usd", "month", None, MONTH, 10**9)
    terms = table({f"{kind}web": Overlay(top_ups=(more,))}, quotas=[CENTER])
    limit_of = {value: terms.of_scope(f"{kind}{value}")[0].window(NOW).limit for value in ("web", "api")}
    assert limit_of == {"web": 6 * 10**9, "api": 5 * 10**9}


def test_the_values_that_are_not_noted_are_topped_up_together() -> None:
    more = TopUp("usd", "month", None, MONTH, 10**9)
    terms = table({"tag:cost-center": Overlay(top_ups=(more,))}, quotas=[CENTER])
    (limit,) = terms.of_call(a_call(Key("a"), cost_center="new")).each
    assert [limit.window(NOW).limit] == [each.window(NOW).limit for each in terms.of_scope("tag:cost-center")]
    assert limit.window(NOW).limit == 6 * 10**9


def test_noted_values_are_read_again_and_unknown_to_gateways_before() -> None:
    assert Overlay.decode(seen("web", "api").encode()) == seen("web", "api")
    assert "seen" not in Overlay().encode()


@pytest.mark.parametrize(
    ("settings", "place", "words"),
    [
        ({"people": {"ann": {"quotas": [CENTER]}}}, "people.ann.quotas[0].label", "of the gateway and of teams"),
        (
            {"teams": {"a": {"member_quotas": [CENTER]}}},
            "teams.a.member_quotas[0].label",
            "of the gateway and of teams",
        ),
        ({"defaults": {"keys": {"quotas": [CENTER]}}}, "defaults.keys.quotas[0].label", "of the gateway and of teams"),
        ({"quotas": [CENTER, CENTER]}, "quotas[1]", "counts the same"),
        ({"teams": {"a/b": {"quotas": [CENTER]}}}, "quotas", "'/'"),
        ({"quotas": [{**CENTER, "label": "Not One"}]}, "quotas[0].label", "pattern"),
    ],
)
def test_a_mistake_is_named(settings: dict[str, Any], place: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        build({**LEAST, **settings})
    text = "\n".join(map(str, error.value.faults))
    assert place in text
    assert words in text


def test_quotas_that_are_made_while_the_gateway_runs_are_checked_alike() -> None:
    config = build(LEAST)
    assert read_team({"quotas": [CENTER]}, config).quotas[0].label == "cost-center"
    with pytest.raises(ConfigError, match="of the gateway and of teams"):
        read_key({"id": "k", "quotas": [CENTER]}, config, ())


def test_a_command_that_sets_a_quota_leaves_those_of_labels() -> None:
    named = read_quota("usd", "7/month")
    assert merged_quotas([CENTER], [named]) == [CENTER, {"usd": 7, "per": "month"}]


def test_a_smaller_quota_of_a_label_makes_no_other_quota_too_large() -> None:
    made = build({**LEAST, "quotas": [CENTER], "teams": {"red": {"quotas": [CENTER | {"usd": 9}, "9 USD/month"]}}})
    found = [
        warning.path
        for warning in warnings_of(made, datetime.fromtimestamp(NOW, UTC))
        if "larger than" in warning.message
    ]
    assert found == ["teams.red.quotas[0]"]


def test_a_quota_with_a_label_counts_beside_one_without() -> None:
    terms = table(quotas=[CENTER, {"usd": 9, "per": "month"}])
    assert [limit.scope for limit in terms.of(Key("a"))] == ["gateway"]
