"""Doors that open to tokens, and who guesses at them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from multidict import CIMultiDict
from pydantic import SecretStr

from gateway.errors import TooManyWrongTokens, Unauthorized
from gateway.observe.metrics import Telemetry
from gateway.web.http_guard import token_auth
from gateway.web.http_guard.token_auth import TokenAuth
from gateway.web.middleware import CONTEXT

ADMIN, VIEWER = "admin-token-0123456789", "viewer-token-0123456789"
TOKENS = {"admin": SecretStr(ADMIN), "viewer": SecretStr(VIEWER)}
HOME, AWAY = "192.0.2.1", "192.0.2.2"


class Request(dict[Any, Any]):
    """As much of a request as the gate reads; aiohttp's mocked one takes a millisecond to make."""

    def __init__(self, headers: dict[str, str], remote: str | None) -> None:
        super().__init__({CONTEXT: SimpleNamespace(remote=remote)})
        self.headers = CIMultiDict(headers)


class Door:
    """A gate, its clock, and who knocks."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.telemetry = Telemetry([], 0)
        self.gate = TokenAuth(self.telemetry, lambda: self.now)

    def knock(self, token: str | None, remote: str | None = HOME, known: dict[str, Any] = TOKENS) -> str:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return self.gate.admit(cast("web.Request", Request(headers, remote)), known)

    def says(self, token: str | None, remote: str | None = HOME) -> int | str:
        """The status, or whose token it is."""
        try:
            return self.knock(token, remote)
        except (Unauthorized, TooManyWrongTokens) as error:
            return error.status

    def rejected(self, reason: str) -> float:
        return self.telemetry.registry.get_sample_value("gateway_rejections_total", {"reason": reason}) or 0.0


@pytest.fixture
def door() -> Door:
    return Door()


def test_each_token_has_its_name(door: Door) -> None:
    assert (door.says(ADMIN), door.says(VIEWER), door.says("neither-of-the-two-012"), door.says(None)) == (
        "admin", "viewer", 401, 401,
    )  # fmt: skip


def test_without_a_token_every_request_is_refused(door: Door) -> None:
    for given in ("", "None", "null", VIEWER):
        with pytest.raises(Unauthorized):
            door.knock(given, known={"admin": SecretStr(ADMIN), "viewer": None})


def test_guesses_are_delayed_and_get_retry_after(door: Door) -> None:
    assert [door.says("wrong-token-0123456789") for _ in range(7)] == [401] * 5 + [429] * 2
    with pytest.raises(TooManyWrongTokens) as received:
        door.knock("wrong-token-0123456789")
    assert (received.value.headers["Retry-After"], received.value.headers["Retry-After-Ms"]) == ("1", "1000")
    assert "Wait 1 second," in received.value.message
    door.now += 1
    assert [door.says("wrong-token-0123456789") for _ in range(3)] == [401, 429, 429]
    assert (door.rejected("wrong_token"), door.rejected("too_many_wrong_tokens")) == (6, 5)


def test_a_wait_is_over_when_it_was_said_to_be_however_many_knock_meanwhile(door: Door) -> None:
    for _ in range(5):
        door.says("wrong-token-0123456789")
    for _ in range(1000):
        assert door.says("wrong-token-0123456789") == 429
    door.now += 1
    assert door.says(ADMIN) == "admin"


def test_a_guesser_cannot_learn_which_token_is_right(door: Door) -> None:
    for _ in range(5):
        door.says("wrong-token-0123456789")
    assert (door.says(ADMIN), door.says(VIEWER), door.says("wrong-token-0123456789")) == (429, 429, 429)


def test_other_addresses_do_not_wait(door: Door) -> None:
    for _ in range(50):
        door.says("wrong-token-0123456789", AWAY)
    assert door.says(ADMIN, HOME) == "admin"
    assert door.says(ADMIN, "2001:db8::1") == "admin"
    assert door.says(ADMIN, None) == "admin"


def test_who_was_here_before_is_not_locked_out_by_a_guesser_at_the_same_address(door: Door) -> None:
    assert door.says(ADMIN) == "admin"
    for _ in range(500):
        door.says("wrong-token-0123456789")
        door.now += 0.1
    assert (door.says(ADMIN), door.says("wrong-token-0123456789")) == ("admin", 429)
    door.now += token_auth.KNOWN_S - 10
    for _ in range(5):
        door.says("wrong-token-0123456789")
    assert door.says(ADMIN) == "admin"


def test_who_was_here_long_ago_waits_like_all_others(door: Door) -> None:
    door.says(ADMIN)
    door.now += token_auth.KNOWN_S + 1
    for _ in range(5):
        door.says("wrong-token-0123456789")
    assert door.says(ADMIN) == 429


def test_a_viewer_cannot_guess_at_the_admin_token(door: Door) -> None:
    """Neither does its own token take its wrong ones back, nor is it looked at for another name's sake."""
    answers = []
    for _ in range(20):
        answers.append(door.says("wrong-token-0123456789"))
        assert door.says(VIEWER) == "viewer" or answers[-1] == 429
    assert answers == [401] * 5 + [429] * 15
    assert (door.says(VIEWER), door.says(ADMIN)) == ("viewer", 429)


def test_a_request_without_a_token_is_no_guess(door: Door) -> None:
    assert {door.says(None) for _ in range(50)} == {401}
    assert door.rejected("wrong_token") == 0
    assert door.says(ADMIN) == "admin"


def test_what_is_remembered_is_bounded(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_auth, "MAX_PLACES", 100)
    monkeypatch.setattr(token_auth, "MAX_KNOWN", 10)
    assert door.says(ADMIN, HOME) == "admin"
    for number in range(1000):
        door.says("wrong-token-0123456789", f"2001:db8:0:{number:x}::1")
    assert repr(door.gate) == "<Gate: 100 addresses with wrong tokens, 1 with right ones>"
    for number in range(50):
        door.says(VIEWER, f"198.51.100.{number}")
    assert repr(door.gate) == "<Gate: 100 addresses with wrong tokens, 10 with right ones>"


def test_a_network_of_one_customer_is_one_address(door: Door) -> None:
    assert [door.says("wrong-token-0123456789", f"2001:db8::{number}") for number in range(7)] == [401] * 5 + [429] * 2
