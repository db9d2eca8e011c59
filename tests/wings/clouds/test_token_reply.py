"""Tokens and their ends in what programs and token endpoints print."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.wings.clouds.grant import NoGrant
from gateway.wings.clouds.token_reply import error_of, read_grant

NOW = 1_800_000_000.0
INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("given", "expires_at"),
    [
        ({"token": "t", "expires_in": 60}, NOW + 60),
        ({"access_token": "t", "expires_in": "60", "token_type": "Bearer"}, NOW + 60),
        ({"accessToken": "t", "expires_on": 1800000600, "expiresOn": "2027-01-15 08:10:00.000000"}, 1800000600),
        ({"access_token": "t", "token_expiry": "2027-01-15T08:10:00Z"}, 1800000600),
        ({"credential": {"access_token": "t", "token_expiry": "2027-01-15T08:10:00Z"}}, 1800000600),
        ({"kind": "ExecCredential", "status": {"token": "t", "expirationTimestamp": "2027-01-15T08:10:00Z"}},
         1800000600),
        ({"token": "t", "expires_at": "2027-01-15T08:10:00"}, 1800000600),
        ({"token": "t"}, None),
        *[({"token": "t", "expires_in": each}, None) for each in (10**400, INF, NAN, "1e400", "nan")],
    ],
)  # fmt: skip
def test_the_token_and_its_end(given: dict[str, Any], expires_at: float | None) -> None:
    grant = read_grant(json.dumps(given), NOW)
    assert (grant.head, grant.secrets, grant.expires_at) == ("Authorization: Bearer t\r\n", ("t",), expires_at)


@pytest.mark.parametrize(
    ("printed", "says"),
    [
        ("a-secret", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('["a-secret"]', "no JSON object"),
        ('{"key": "a-secret"}', "none of token, access_token"),
        ('{"token": "a-secret\\r\\nX: y"}', "no header may hold"),
        ('{"token": ""}', "empty"),
        ('{"token": "a-secret", "expires_at": "tomorrow"}', "expires_at is no time"),
    ],
    ids=range(7),
)
def test_what_holds_no_token_is_refused_and_not_quoted(printed: str, says: str) -> None:
    with pytest.raises(NoGrant, match=says) as refused:
        read_grant(printed, NOW)
    assert "secret" not in str(refused.value)


def test_a_grant_shows_nothing_of_itself() -> None:
    assert "a-secret" not in repr(read_grant('{"token": "a-secret"}', NOW))


@pytest.mark.parametrize(
    ("body", "code"),
    [(b'{"error": "invalid_client"}', "invalid_client"), (b'{"error": "a secret of ours"}', ""), (b"<p>", ""),
     (b'{"error": {"code": 1}}', "")],
)  # fmt: skip
def test_the_code_of_an_error(body: bytes, code: str) -> None:
    assert error_of(body) == code
