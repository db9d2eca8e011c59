"""Documents of keys, teams and overlays: how each becomes the next, and what is shown of them."""

from __future__ import annotations

import pytest

from gateway.config import KeySettings, Team, build, read_key, shown_key
from gateway.keys import token_bucket
from gateway.keys.token_bucket import TokenBucket, TokenBuckets
from gateway.quota import issued
from gateway.quota.issued import IssuedKey, IssuedTeam, Overlay, SecretOf, TopUp

NOW = 1_800_000_000.0
DAY = TopUp("tokens", "day", None, "2027-01-15", 1000)


def key(**settings: object) -> IssuedKey:
    made = KeySettings.model_validate({"id": "alice", **settings})
    return IssuedKey(made, (SecretOf("a" * 64, NOW),), NOW, NOW)


def test_a_key_is_the_same_after_it_was_stored() -> None:
    quotas = [{"usd": 0.1, "per": "day"}, {"usd": "9007199.254740991", "per": "month"}, {"tokens": 5, "per": 90}]
    networks = ["10.0.0.0/8", "fd00::/8"]
    before = key(
        team="t", models=["gpt-*"], expires="2027-01-01T00:00:00+02:00", ips=networks, max_parallel=3,
        limits={"n": 2, "deny": ["user"]}, quotas=quotas, on_exceeded="shadow",
    ).rotated("b" * 64, NOW + 1, 60)  # fmt: skip
    assert IssuedKey.decode(before.encode()) == before


def test_no_document_and_nothing_shown_holds_more_than_the_hash_of_a_secret() -> None:
    shown = issued.show_key(key(), NOW)
    assert "a" * 64 not in str(shown)
    assert shown["secrets"] == [{"created_at": "2027-01-15T08:00:00Z", "expires_at": None}]


def test_the_old_secret_of_a_rotated_key_ends_with_its_overlap() -> None:
    rotated = key().rotated("b" * 64, NOW + 10, 60)
    assert [(secret.sha256[0], secret.until) for secret in rotated.secrets] == [("b", None), ("a", NOW + 70)]
    assert not issued.is_over(rotated.secrets[1], NOW + 69)
    assert issued.is_over(rotated.secrets[1], NOW + 70)


def test_at_most_two_secrets_are_live() -> None:
    twice = key().rotated("b" * 64, NOW, 60).rotated("c" * 64, NOW + 1, 60)
    assert [secret.sha256[0] for secret in twice.secrets] == ["c", "b"]


def test_without_overlap_the_old_secret_goes_at_once() -> None:
    assert [secret.sha256[0] for secret in key().rotated("b" * 64, NOW, 0).secrets] == ["b"]


def test_an_overlap_does_not_make_a_secret_live_longer_than_it_was_to() -> None:
    once = key().rotated("b" * 64, NOW, 60)
    assert once._replace(secrets=once.secrets[1:]).rotated("c" * 64, NOW + 1, 3600).secrets[1].until == NOW + 60


def test_a_team_and_an_overlay_are_the_same_after_they_were_stored() -> None:
    team = IssuedTeam(Team.model_validate({"quotas": [{"usd": 12.5, "per": "month"}]}), NOW, NOW + 1)
    assert IssuedTeam.decode(team.encode()) == team
    overlay = Overlay(NOW, (DAY,))
    assert Overlay.decode(overlay.encode()) == overlay


def test_top_ups_of_one_window_add_up_and_those_of_earlier_ones_go() -> None:
    month = DAY._replace(per="month", starts="2027-01")
    tomorrow = DAY._replace(starts="2027-01-16", amount=5)
    overlay = Overlay().topped_up(DAY).topped_up(month).topped_up(DAY)
    assert overlay.top_ups == (month, DAY._replace(amount=2000))
    assert overlay.topped_up(tomorrow).top_ups == (month, tomorrow)


def test_a_top_up_is_of_one_quota_alone() -> None:
    other = DAY._replace(model="gpt-4*")
    assert issued.topped_up([DAY, other], "tokens", "day", None) == {"2027-01-15": 1000}
    assert issued.topped_up([DAY, other], "requests", "day", None) == {}


@pytest.mark.parametrize(
    ("secret", "may_be"),
    [
        (issued.format_secret("alice", "x" * 43), True),
        (issued.format_secret("a-b.c_d", "-_Az09" * 7 + "x"), True),
        ("sk-gw-alice-" + "x" * 42, False),
        ("sk-gw--" + "x" * 43, False),
        ("sk-gw-Alice-" + "x" * 43, False),
        ("sk-proj-" + "x" * 60, False),
        ("sk-gw-alice-" + "x" * 43 + "\n", False),
    ],
)
def test_only_what_has_the_form_of_an_issued_secret_may_be_one(secret: str, may_be: bool) -> None:
    assert issued.may_be_issued(secret) is may_be


def test_what_is_shown_of_a_key_is_what_can_be_read_again() -> None:
    config = build(
        {
            "upstreams": {"u": {"base_url": "http://127.0.0.1:1/v1", "api_key": "k" * 24}},
            "models": {"m": {"routes": [{"upstream": "u"}], "max_output_tokens": 5}},
        }
    )
    wish = {"id": "a", "quotas": [{"usd": 1.5, "per": "month"}], "limits": {"n": 1}, "expires": "2027-01-01T00:00:00Z"}
    read = read_key(wish, config, ())
    assert read_key({name: value for name, value in shown_key(read).items() if value is not None}, config, ()) == read


def test_an_allowance_refills_up_to_its_most() -> None:
    allowance = TokenBucket(per_s=10, most=20)
    allowance.spend(19)
    assert not allowance.is_spent(100)
    allowance.spend(21)
    assert allowance.is_spent(100)
    assert allowance.is_spent(100.15)
    assert not allowance.is_spent(100.25)
    allowance.spend(1)
    assert not allowance.is_spent(10_000)
    allowance.spend(20)
    assert allowance.is_spent(10_000)


def test_each_name_has_an_allowance_and_few_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_bucket, "MAX_NAMES", 2)
    allowances = TokenBuckets(per_s=1, most=1)
    for name in ("a", "b"):
        allowances.of(name).spend(1)
    assert allowances.of("a").is_spent(0)
    assert not allowances.of("c").is_spent(0)  # in the place of b, which was asked for longest ago
    assert allowances.of("a").is_spent(0)
    assert not allowances.of("b").is_spent(0)


@pytest.mark.parametrize("wait_s", [0, 1.5, None])
def test_a_wait_is_the_same_after_it_was_stored(wait_s: float | None) -> None:
    before = key(max_wait_s=wait_s)
    assert IssuedKey.decode(before.encode()) == before
    assert ("max_wait_s" in before.encode()) == (wait_s is not None)  # an older gateway does not know it
