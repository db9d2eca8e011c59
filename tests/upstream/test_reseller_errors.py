"""Each recorded answer of a reseller, as the rules judge it; whole gateways meet them in flows/test_resellers.py."""

from __future__ import annotations

import pytest

from gateway.errors import GatewayError, UpstreamFailed, UpstreamRefused
from gateway.records import Failure, Fault
from gateway.upstream.connection import Head
from gateway.upstream.error_shapes import error_of
from gateway.upstream.provider_errors import TABLE, judge, judge_in_band, row_of
from gateway.upstream.refusal import unwrapped

from .resellers import GOOD, POISON, RECORDED, REQUEST_ID, ROWS, Row, recorded

HIDDEN = (("sk-upstream-key-that-nobody-may-see", "***"), ("127.0.0.1", "the upstream"))
JUDGED = [row for row in ROWS if row.fault not in (Fault.NOT_JSON, Fault.CUT)]
"""Those with an error to judge."""


def test_every_recorded_answer_has_its_row() -> None:
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names))
    assert {*names, *GOOD} == {path.stem for path in RECORDED.glob("*")}


@pytest.mark.parametrize("row", JUDGED, ids=lambda row: row.name)
def test_judged(row: Row) -> None:
    said = recorded(row.name)
    head = Head(said.status, said.headers)
    if said.status == 200:
        error = said.error if said.is_stream else error_of(said.body)
        assert error is not None
        found = judge_in_band("up", error, head, hide=HIDDEN)
    else:
        found = judge("up", head, said.body, now=0.0, hide=HIDDEN)
    assert row.log in found.detail
    assert "sk-" not in found.detail
    received: GatewayError
    if isinstance(found, Failure):
        assert found.fault is row.fault
        received = UpstreamFailed.after(found)
        assert (received.status, received.code) == (row.status, row.code)
    else:
        assert row.fault is None
        assert (found.status, found.type, found.param, found.code) == (row.status, row.type, row.param, row.code)
        assert found.message == row.message
        received = found
    shown = received.body().decode()
    assert not [each for each in POISON if each in shown]


def test_each_row_of_the_table_decides_something() -> None:
    """A row that never decides is not needed. What no reseller sends stands in test_quirks.py."""
    decisive = set()
    for row in JUDGED:
        said = recorded(row.name)
        status = None if said.status == 200 else said.status
        error = said.error if said.is_stream else (error_of(said.body) or {})
        words = {str(error.get("code")), str(error.get("type"))}
        message = unwrapped(error.get("message"))[0]
        decisive.add(next(number for number, each in enumerate(TABLE) if each.fits(status, words, message)))
    # OpenAI's 402, LiteLLM's and Anthropic's words for a refused key.
    assert set(range(len(TABLE))) - decisive == {0, 1, 3, 11}


@pytest.mark.parametrize(
    ("name", "is_certain"),
    [
        ("balance-of-the-account", True),
        ("balance-of-the-token", True),
        ("balance-of-one-api-token", True),
        ("balance-of-one-api-token-later", True),
        ("token-not-valid", True),
        ("token-not-valid-in-a-200", True),
        ("balance-of-a-channel", False),
        ("balance-behind-it", False),
        ("group-not-ours", False),
        ("channel-disabled-by-words", False),
    ],
)
def test_only_the_resellers_own_words_concern_our_key_for_certain(name: str, is_certain: bool) -> None:
    """Everything else may be the refusal of one channel that the reseller hands on."""
    found = recorded(name)
    status = found.status if found.status != 200 else None
    row = row_of(status, found.error)
    assert row.fault in (Fault.AUTH, Fault.BALANCE)
    assert row.is_of_credential is is_certain


@pytest.mark.parametrize(
    "message",
    [
        "Invalid value for 'user': 'your credit balance is too low'",
        "The model `No available channel for model x` does not exist",
        "messages[0]: 该令牌额度已用尽",
        "'无效的令牌' is not one of ['a', 'b']",
        "Unexpected text (request id: x) Your credit balance is too low",
    ],
)
def test_what_a_client_has_written_does_not_make_it_our_fault(message: str) -> None:
    """Else one client could have the key rested that others use."""
    error = {"message": message, "type": "invalid_request_error", "code": None}
    assert row_of(400, error).fault is None


@pytest.mark.parametrize(
    ("message", "text", "number"),
    [
        ("no prompt (request id: 2024ab)", "no prompt", "2024ab"),
        ("no prompt (Request ID: 2024ab) ", "no prompt", "2024ab"),
        ("f(a) (request id: 1) more", "f(a) (request id: 1) more", None),
        ("(request id: 1)", "", "1"),
        ("litellm.BadRequestError: OpenAIException - Bad n.\nReceived Model Group=m\nAvailable ...", "Bad n.", None),
        ("Bad n.\n\nLiteLLM: model group 'm' failed with the error above.", "Bad n.", None),
        ("litellm.A: litellm.B: Too long.\nmodel=m. context_window_fallbacks=None.\n\nSet x", "Too long.", None),
        (None, "", None),
        (["x"], "['x']", None),
    ],
)
def test_unwrapped(message: object, text: str, number: str | None) -> None:
    assert unwrapped(message) == (text, number)


@pytest.mark.parametrize("word", ["None", "null", ""])
def test_words_for_nothing_are_null(word: str) -> None:
    """LiteLLM writes Python's word for it, Go an empty string."""
    error = {"message": "no", "type": word, "param": word, "code": word}
    found = judge_in_band("up", error | {"code": "400"}, hide=())
    assert isinstance(found, UpstreamRefused)
    assert (found.type, found.param, found.code) == ("invalid_request_error", None, None)


@pytest.mark.parametrize(
    ("headers", "kept"),
    [
        ({"x-oneapi-request-id": REQUEST_ID}, f"status 500, request id {REQUEST_ID}"),
        ({"x-request-id": "req_1"}, "status 500, request id req_1"),
        ({"x-request-id": "a b\tc"}, "status 500"),
        ({"x-request-id": "x" * 101}, "status 500"),
    ],
)
def test_log_keeps_the_upstreams_own_identifier(headers: dict[str, str], kept: str) -> None:
    found = judge("up", Head(500, tuple(headers.items())), b"", now=0.0, hide=())
    assert found.detail == kept


def test_log_is_one_line_without_secrets() -> None:
    error = {"message": "words of a client", "code": "a\nb sk-upstream-key-that-nobody-may-see", "type": "x"}
    found = judge_in_band("up", error, hide=HIDDEN)
    assert found.detail == "in a 200, code a?b ***"
