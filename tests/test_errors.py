"""Whether a client is to repeat what was refused: of every class of errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gateway import errors
from gateway.errors import (
    BodyTimeout,
    BodyTooLarge,
    Conflict,
    Forbidden,
    GatewayError,
    InvalidRequest,
    MethodNotAllowed,
    ModelNotFound,
    ModelNotPriced,
    NotFound,
    QuotaSpent,
    RateLimited,
    StreamInterrupted,
    TooManyWrongTokens,
    Unauthorized,
    Unavailable,
    UpgradeRequired,
    UpstreamFailed,
    UpstreamRefused,
    internal_error,
)
from gateway.records import Failure, Fault, Phase

FAILURE = Failure("up", Phase.REFUSED, Fault.STATUS, "status 500", 500)

CASES: list[tuple[GatewayError, bool]] = [
    (internal_error("req_1"), True),
    (InvalidRequest("x", param="n", code="invalid_value"), False),
    (Unauthorized("x"), False),
    (Unauthorized("x", code="invalid_api_key"), False),
    (Unauthorized("x", may_be_renewed=True), True),
    (NotFound("x"), False),
    (ModelNotFound("m"), False),
    (ModelNotPriced("m"), False),
    (Forbidden("x"), False),
    (MethodNotAllowed("x", headers={"Allow": "POST"}), False),
    (UpgradeRequired("/v1/responses"), False),
    (Conflict("x", code="already_exists"), False),
    (Conflict("x", code="changed_meanwhile"), True),
    (BodyTimeout("x"), True),
    (BodyTooLarge("x"), False),
    (RateLimited("x", unit="requests", retry_after_ms=1000, headers={}), True),
    (RateLimited("x", unit="requests", retry_after_ms=3_600_000, headers={}), False),
    (TooManyWrongTokens(1.0), True),
    (QuotaSpent("x", headers={"a": "b"}), False),
    (Unavailable("x", code="shutting_down"), True),
    (UpstreamRefused(422, "x", "invalid_request_error", None, None), False),
    (UpstreamFailed.after(FAILURE), True),
    (UpstreamFailed.after(FAILURE, may_repeat=False), False),
    (StreamInterrupted("resp_1"), True),
]


def classes(of: type[GatewayError] = GatewayError) -> Iterator[type[GatewayError]]:
    yield of
    for each in of.__subclasses__():
        yield from classes(each)


def test_every_class_is_here() -> None:
    own: dict[str, Any] = vars(errors)
    assert {each for each in classes() if own.get(each.__name__) is each} == {type(error) for error, _ in CASES}


@pytest.mark.parametrize(("error", "may_be_repeated"), CASES, ids=lambda value: type(value).__name__)
def test_what_cannot_succeed_is_not_repeated(error: GatewayError, may_be_repeated: bool) -> None:
    assert error.headers.get("X-Should-Retry") == (None if may_be_repeated else "false")
