"""Whose key this is, and what it may use."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api import auth
from gateway.config import Config
from gateway.errors import Unauthorized
from gateway.records import Key

SECRET = "sk-test-0123456789-0123456789"
NOON = datetime(2027, 1, 1, 12, tzinfo=UTC)


def config(*more: dict[str, Any], offers: dict[str, Any] | None = None, **key: Any) -> Config:
    return Config.model_validate({
        "upstreams": {"up": {"base_url": "http://127.0.0.1:1/v1"}},
        "models": offers or {"m": {"routes": [{"upstream": "up"}]}},
        "teams": {"red": {}},
        "keys": [{"id": "ci", "secret": SECRET, **key}, *more],
    })  # fmt: skip


def find(settings: Config, secret: str = SECRET, now: datetime = NOON, remote: str | None = "10.1.2.3") -> Key:
    found = auth.index(settings.keys).get(auth.digest(secret))
    return auth.admit(auth.KnownSecret(found) if found else None, secret, now=now.timestamp(), remote=remote)


def refusal(settings: Config, **given: Any) -> Unauthorized:
    with pytest.raises(Unauthorized) as caught:
        find(settings, **given)
    assert caught.value.status == 401
    assert caught.value.headers["WWW-Authenticate"] == "Bearer"
    assert SECRET not in caught.value.message
    return caught.value


# -------------------------------------------------------------------------------------------------- the header


@pytest.mark.parametrize(
    ("headers", "token"),
    [
        (["Bearer abc"], "abc"),
        (["bearer abc"], "abc"),
        (["BEARER  abc "], "abc"),
        (["Bearer a b"], "a b"),
    ],
)
def test_bearer(headers: list[str], token: str) -> None:
    assert auth.bearer(headers) == token


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ([], "You didn't provide an API key"),
        ([""], "You didn't provide an API key"),
        (["Bearer"], "You didn't provide an API key"),
        (["Bearer "], "You didn't provide an API key"),
        (["abc"], "You didn't provide an API key"),
        (["Basic YTpi"], "You didn't provide an API key"),
        (["Bearer abc", "Bearer abc"], "more than one Authorization header"),
        (["Bearer abc", "Basic YTpi"], "more than one Authorization header"),
    ],
)
def test_no_key(headers: list[str], says: str) -> None:
    with pytest.raises(Unauthorized, match=says) as caught:
        auth.bearer(headers)
    assert (caught.value.code, caught.value.param) == (None, None)


# ------------------------------------------------------------------------------------------------------ finding


def test_found_by_its_whole_secret() -> None:
    settings = config(
        {"id": "hashed", "sha256": hashlib.sha256(b"another-secret-0123456789").hexdigest().upper()},
        team="red",
        models=["gpt-*"],
        max_parallel=3,
        on_exceeded="shadow",
        limits={"n": 4},
        quotas=[{"requests": 5, "per": "day"}],
    )
    key = find(settings)
    assert (key.id, key.team, key.models, key.max_parallel, key.is_shadow) == ("ci", "red", ("gpt-*",), 3, True)
    assert key.limits.n == 4
    assert [(quota.unit, quota.limit) for quota in key.quotas] == [("requests", 5)]
    assert find(settings, "another-secret-0123456789").id == "hashed"
    assert SECRET not in repr(key)
    assert SECRET not in repr(auth.index(settings.keys))


@pytest.mark.parametrize("secret", ["", SECRET[:-1], SECRET + "x", SECRET.upper(), "sk-\udcff", "ключ" * 10])
def test_wrong_key(secret: str) -> None:
    error = refusal(config(), secret=secret)
    assert error.code == "invalid_api_key"
    assert error.message.isprintable()


@pytest.mark.parametrize(("second", "works"), [(59, True), (60, False), (61, False)])
def test_expiry(second: int, works: bool) -> None:
    settings = config(expires="2027-01-01T13:00:00+01:00")
    now = datetime.fromtimestamp(NOON.timestamp() - 60 + second, UTC)
    if works:
        assert find(settings, now=now).id == "ci"
    else:
        assert refusal(settings, now=now).code == "invalid_api_key"


@pytest.mark.parametrize(
    ("ips", "remote", "works"),
    [
        ([], None, True),
        (["10.0.0.0/8"], "10.255.0.1", True),
        (["10.0.0.0/8"], "11.0.0.1", False),
        (["10.0.0.0/8"], "::ffff:10.0.0.1", True),
        (["10.0.0.0/8"], "::1", False),
        (["10.0.0.0/8", "::1"], "::1", True),
        (["fe80::/10"], "fe80::1%eth0", True),
        (["192.0.2.7"], "192.0.2.7", True),
        (["192.0.2.7"], "192.0.2.8", False),
        (["10.0.0.0/8"], None, False),
        (["10.0.0.0/8"], "unix:", False),
    ],
)
def test_networks(ips: list[str], remote: str | None, works: bool) -> None:
    settings = config(ips=ips)
    if works:
        assert find(settings, remote=remote).id == "ci"
    else:
        assert refusal(settings, remote=remote).code == "ip_not_authorized"


@pytest.mark.parametrize(
    ("secret", "shown"),
    [
        ("sk-abcdefghijklmnopqrstuvwxyz", "sk-***yz"),
        ("short", "***"),
        ("x" * 23, "***"),
        ("x" * 23 + "\n", "***"),
        ("é" * 30, "***"),
    ],
)
def test_mask(secret: str, shown: str) -> None:
    assert auth.mask(secret) == shown


@given(st.text(min_size=1, alphabet=st.characters(codec="ascii")))
def test_mask_never_shows_more_than_five_characters(secret: str) -> None:
    assert len(auth.mask(secret).replace("***", "")) <= 5


# ------------------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize(
    ("patterns", "model", "works"),
    [
        (("*",), "anything/at:all", True),
        (("gpt-*",), "gpt-4o", True),
        (("gpt-*",), "GPT-4o", False),
        (("gpt-*",), "my-gpt-4", False),
        (("gpt-4o",), "gpt-4o-mini", False),
        (("a", "b?"), "b1", True),
        ((), "a", False),
    ],
)
def test_may_use(patterns: tuple[str, ...], model: str, works: bool) -> None:
    assert auth.may_use(Key("k", models=patterns), model) is works


def test_offered() -> None:
    routes = {"routes": [{"upstream": "up"}]}
    settings = config(offers={"b": routes, "a": {**routes, "endpoints": ["chat"]}, "x-1": routes, "*": routes})
    assert auth.offered(Key("k", models=("?",)), settings) == ["a", "b"]
    assert auth.offered(Key("k"), settings) == ["a", "b", "x-1"]
