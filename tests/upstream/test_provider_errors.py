"""What an upstream's error means: whose fault it is, and what a client is shown of it (WIRE part 2, as a table)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import UpstreamFailed, UpstreamRefused
from gateway.records import Failure, Fault, Phase
from gateway.upstream.connection import Head
from gateway.upstream.error_shapes import error_of
from gateway.upstream.provider_errors import judge, judge_in_band, retry_after_s

SAID_NOTHING = "The upstream refused this request without a reason."
NOW = 1_800_000_000.0
HIDDEN = (
    ("sk-our-own-key", "***"),
    ("https://api.reseller.example/v1", "the upstream"),
    ("api.reseller.example", "the upstream"),
    ("vendor/model-7b", "our-model"),
    ("", "never"),
)


def judged(status: int, body: Any, **headers: str) -> Failure | UpstreamRefused:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = Head(status, tuple((name.replace("_", "-"), value) for name, value in headers.items()))
    return judge("up", head, raw, now=NOW, hide=HIDDEN)


def error(message: str = "no", error_type: Any = "invalid_request_error", param: Any = None, code: Any = None) -> Any:
    return {"error": {"message": message, "type": error_type, "param": param, "code": code}}


# --------------------------------------------------------------------------------------------- the upstream's fault


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        # Our own account.
        (401, error(code="invalid_api_key"), Fault.AUTH),
        (401, b"", Fault.AUTH),
        (403, error("Country, region, or territory not supported", "request_forbidden"), Fault.AUTH),
        (403, b"<html>", Fault.AUTH),
        (400, error(code="account_deactivated"), Fault.AUTH),
        # Its balance: a reseller's 403, OpenAI's 429, others' 402.
        (403, error("", "new_api_error", "", "insufficient_user_quota"), Fault.BALANCE),
        (403, error("", "new_api_error", "", "pre_consume_token_quota_failed"), Fault.BALANCE),
        (429, error("", "insufficient_quota", None, "insufficient_quota"), Fault.BALANCE),
        (429, error("", "insufficient_quota"), Fault.BALANCE),
        (400, error(code="billing_hard_limit_reached"), Fault.BALANCE),
        (402, error("Insufficient Balance", "unknown_error"), Fault.BALANCE),
        (402, b"", Fault.BALANCE),
        # Its limits.
        (429, error("", "tokens", None, "rate_limit_exceeded"), Fault.RATE_LIMITED),
        (429, b"", Fault.RATE_LIMITED),  # new-api: without a body and without Retry-After
        (503, error(code="slow_down"), Fault.RATE_LIMITED),
        # Itself.
        (500, error("", "server_error"), Fault.STATUS),
        (500, error("", "one_api_error"), Fault.STATUS),
        (502, b"<html>Bad Gateway</html>", Fault.STATUS),
        # One model of it.
        (503, error("no channel for model", "new_api_error", "", "model_not_found"), Fault.NO_CHANNEL),
        (503, error("No available channel for model x under group default", "new_api_error"), Fault.NO_CHANNEL),
        (503, error("当前分组 default 下对于模型 x 无可用渠道", "one_api_error"), Fault.NO_CHANNEL),
        (503, error("", "new_api_error", "", "get_channel_failed"), Fault.NO_CHANNEL),
        (503, error("no channelling", "server_error"), Fault.STATUS),
        (500, error("no channel for model", "new_api_error", "", "model_not_found"), Fault.NO_CHANNEL),
        (503, error("", "invalid_request_error"), Fault.STATUS),
        (500, [1], Fault.STATUS),
        (500, {"error": {}}, Fault.STATUS),
        (418, error(), Fault.STATUS),
        (409, error(), Fault.STATUS),
        (204, b"", Fault.STATUS),
        (301, b"", Fault.REDIRECT),
        (307, error(), Fault.REDIRECT),
        (304, b"", Fault.REDIRECT),
    ],
)
def test_failure(status: int, body: Any, fault: Fault) -> None:
    found = judged(status, body)
    assert isinstance(found, Failure), found
    assert (found.upstream, found.phase, found.fault, found.status) == ("up", Phase.REFUSED, fault, status)
    assert f"status {status}" in found.detail


def test_detail_names_the_code_for_the_log_and_is_short() -> None:
    found = judged(500, error("secret words", "server_error", None, "x" * 1000))
    assert isinstance(found, Failure)
    assert found.detail.startswith("status 500, code xxx")
    assert len(found.detail) <= 200
    assert "secret words" not in found.detail


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry_after": "3"}, 3.0),
        ({"retry_after": "0"}, 0.0),
        ({"retry_after": " 2.5 "}, 2.5),
        ({"retry_after_ms": "1500"}, 1.5),
        ({"retry_after_ms": "1500", "retry_after": "9"}, 1.5),
        ({"retry_after_ms": "-5"}, 0.0),
        ({"retry_after": "Fri, 15 Jan 2027 08:00:10 GMT"}, 10.0),
        ({"retry_after": "Fri, 15 Jan 2027 07:59:00 GMT"}, 0.0),
        ({"retry_after": "soon"}, None),
        ({"retry_after": ""}, None),
        ({"retry_after": "-5"}, None),
        ({"retry_after": "²"}, None),
        ({"retry_after": "1" * 400}, None),  # an infinity
        ({"retry_after_ms": "inf"}, None),
        ({"retry_after_ms": "nan"}, None),
        ({"retry_after_ms": "soon"}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    found = judged(429, b"", **headers)
    assert isinstance(found, Failure)
    assert found.retry_after_s == seconds
    received = UpstreamFailed.after(found).headers
    assert int(received["Retry-After"]) >= max(1, seconds or 0)


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_header_hurts(ms: str, after: str) -> None:
    for name, value in (("retry-after-ms", ms), ("retry-after", after)):
        found = retry_after_s(Head(429, ((name, value),)), NOW)
        assert found is None or 0 <= found < float("inf")


# ------------------------------------------------------------------------------------------------ the client's turn


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (429, "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40022."),
        (429, "Extra usage is required for long context requests."),
        (403, 'openai/gpt-4o requires moderation on OpenAI. Your input was flagged for "violence".'),
        (403, "Permission denied while accessing input file gs://somebody/video.mp4"),
    ],
)
def test_a_request_is_to_blame_also_where_the_status_blames_the_account(status: int, message: str) -> None:
    refused = judged(status, error(message, "rate_limit_error"), retry_after="30")
    assert isinstance(refused, UpstreamRefused)
    assert (refused.status, refused.message) == (status, message)
    account = judged(status, error(f"x: {message}", "rate_limit_error"))
    assert isinstance(account, Failure)


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_what_the_client_has_to_change_is_relayed(status: int) -> None:
    found = judged(status, error("Too long.", "invalid_request_error", "messages", "context_length_exceeded"))
    assert isinstance(found, UpstreamRefused)
    assert (found.status, found.message, found.type) == (status, "Too long.", "invalid_request_error")
    assert (found.param, found.code) == ("messages", "context_length_exceeded")


@pytest.mark.parametrize("body", [b"", b"<html>Request Entity Too Large</html>", {"cut": 1}, [], {"error": None}])
def test_a_status_without_an_error_object_is_relayed_too(body: Any) -> None:
    found = judged(413, body)
    assert isinstance(found, UpstreamRefused)
    assert (found.status, found.type, found.param, found.code) == (413, "invalid_request_error", None, None)
    assert found.message == SAID_NOTHING


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        # "" is what Go makes of null.
        (("no", "invalid_request_error", "", ""), ("no", "invalid_request_error", None, None)),
        ((None, None, None, None), (SAID_NOTHING, "invalid_request_error", None, None)),
        # Resellers' own words.
        (("no", "new_api_error", "", "x"), ("no", "invalid_request_error", None, "x")),
        (("no", "one_api_error", None, None), ("no", "invalid_request_error", None, None)),
        (("no", "upstream_error", "400", "bad_response_status_code"), ("no", "invalid_request_error", None, None)),
        (("no", "BadRequestError", None, 400), ("no", "BadRequestError", None, None)),
        (("no", "invalid_request_error", None, "400"), ("no", "invalid_request_error", None, None)),
        (("no prompt (request id: 20240101abc)", "x", None, None), ("no prompt", "x", None, None)),
        (("f(a) (request id: 2024) more", "x", None, None), ("f(a) (request id: 2024) more", "x", None, None)),
        (("litellm.BadRequestError: OpenAIException - Bad n.", "x", None, None), ("Bad n.", "x", None, None)),
        (("litellm.BadRequestError: Too long - by far", "x", None, None), ("Too long - by far", "x", None, None)),
        (("请求错误", "x", None, None), ("请求错误", "x", None, None)),
        # What is ours.
        (("key sk-our-own-key of api.reseller.example", "x", "vendor/model-7b", "sk-our-own-key"),
         ("key *** of the upstream", "x", "our-model", "***")),
        (("see https://api.reseller.example/v1/models", "x", None, None), ("see the upstream/models", "x", None, None)),
        (("No model `vendor/model-7b`", "x", None, None), ("No model `our-model`", "x", None, None)),
        ((["vendor/model-7b"], {"a": 1}, 7, True), ("our-model", "invalid_request_error", "7", "True")),
        (("API.Reseller.Example: no Vendor/Model-7B", None, None, None),
         ("the upstream: no our-model", "invalid_request_error", None, None)),
    ],
)  # fmt: skip
def test_what_the_client_sees(given: tuple[Any, ...], shown: tuple[Any, ...]) -> None:
    found = judged(400, error(*given))
    assert isinstance(found, UpstreamRefused)
    assert (found.message, found.type, found.param, found.code) == shown
    assert set(json.loads(found.body())["error"]) == {"message", "type", "param", "code"}


def test_a_stand_in_is_shown_as_it_is() -> None:
    """It may be the client's own name of a model: nothing in it means anything."""
    body = json.dumps(error("no c++(1).model")).encode()
    found = judge("up", Head(400, ()), body, now=NOW, hide=[("C++(1).model", r"\1 \g<0> \n")])
    assert isinstance(found, UpstreamRefused)
    assert found.message == r"no \1 \g<0> \n"


@pytest.mark.parametrize(
    "body",
    [
        error("bad", "new_api_error", "", "invalid_request"),  # new-api#6773
        error("bad", "invalid_request_error"),
    ],
)
def test_a_clients_mistake_behind_a_500_is_a_400(body: Any) -> None:
    found = judged(500, body)
    assert isinstance(found, UpstreamRefused)
    assert (found.status, found.message) == (400, "bad")


# -------------------------------------------------------------------------------------------------- inside a 200


@pytest.mark.parametrize(
    ("inside", "fault", "status"),
    [
        ({"message": "x", "type": "server_error"}, Fault.IN_BAND, None),
        ({"message": "x"}, Fault.IN_BAND, None),
        ({"message": "x", "code": "insufficient_user_quota"}, Fault.BALANCE, None),
        ({"message": "x", "type": "insufficient_quota"}, Fault.BALANCE, None),
        ({"message": "x", "code": "invalid_api_key"}, Fault.AUTH, None),
        ({"message": "x", "code": "rate_limit_exceeded"}, Fault.RATE_LIMITED, None),
        # As if it had come with the status that it names.
        ({"message": "x", "code": 502}, Fault.STATUS, 502),
        ({"message": "x", "code": "503"}, Fault.STATUS, 503),
        ({"message": "x", "code": "429"}, Fault.RATE_LIMITED, 429),
        ({"message": "x", "code": 401}, Fault.AUTH, 401),
        ({"message": "x", "code": 402}, Fault.BALANCE, 402),
        ({"message": "x", "code": 200}, Fault.IN_BAND, None),
        ({"message": "x", "code": 42}, Fault.IN_BAND, None),
    ],
)
def test_in_band_failure(inside: dict[str, Any], fault: Fault, status: int | None) -> None:
    found = judge_in_band("up", inside, hide=HIDDEN)
    assert isinstance(found, Failure)
    assert (found.phase, found.fault, found.status) == (Phase.REFUSED, fault, status)
    assert found.detail.startswith("in a 200, code ")


@pytest.mark.parametrize(
    ("inside", "status"),
    [
        ({"message": "x sk-our-own-key", "type": "invalid_request_error"}, 400),
        ({"message": "x sk-our-own-key", "code": "invalid_request"}, 400),
        ({"message": "x sk-our-own-key", "code": 400}, 400),
        ({"message": "x sk-our-own-key", "code": "422", "type": "BadRequestError"}, 422),
        ({"message": "x sk-our-own-key", "code": 404}, 404),
    ],
)
def test_in_band_refusal(inside: dict[str, Any], status: int) -> None:
    found = judge_in_band("up", inside, hide=HIDDEN)
    assert isinstance(found, UpstreamRefused)
    assert (found.status, found.message) == (status, "x ***")


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"error": {"message": "x"}}', {"message": "x"}),
        (b'{"error": "x"}', {"message": "x"}),
        (b'{"error": {}}', None),
        (b'{"error": null}', None),
        (b'{"error": [1]}', None),
        (b'{"choices": []}', None),
        (b'["too long", "too loud"]', {"message": "too long; too loud"}),
        (b"", None),
        (b"\xff\xfe", None),
        (b"[" * 100_000, None),
    ],
)
def test_error_of(body: bytes, found: dict[str, Any] | None) -> None:
    assert error_of(body) == found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@given(st.integers(300, 599), st.binary(max_size=50) | st.fixed_dictionaries({"error": JSON}) | st.fixed_dictionaries({
    "error": st.fixed_dictionaries({}, optional={"message": JSON, "type": JSON, "param": JSON, "code": JSON})
}))  # fmt: skip
def test_no_answer_hurts(status: int, body: Any) -> None:
    found = judged(status, body)
    if isinstance(found, UpstreamRefused):
        assert found.status in (400, 404, 413, 422)
        assert found.message
        json.loads(found.body())
    else:
        assert UpstreamFailed.after(found).status >= 429
    if isinstance(body, dict) and isinstance(body["error"], dict):
        judge_in_band("up", body["error"], hide=HIDDEN)


@pytest.mark.parametrize(
    ("body", "is_url"),
    [
        (b"", True),
        (b"404 page not found", True),
        (b"<html><h1>404 Not Found</h1></html>", True),
        (b'{"detail": "Not Found"}', True),
        (b'{"error": {"message": "Invalid URL (POST /v1/v1/completions)", "type": "invalid_request_error"}}', True),
        (b'{"error": {"code": "404", "message": "Resource not found"}}', True),
        (b'{"error": {"message": "The model `m` does not exist", "code": "model_not_found"}}', False),
        (b'{"error": {"message": "Invalid URL in image_url"}}', False),
        (b'{"error": "model not found"}', False),
        (
            b'{"object": "error", "message": "The model `m` does not exist.", "type": "NotFoundError", "code": 404}',
            False,
        ),
    ],
)
def test_404_for_the_url_itself_is_a_fault_of_the_configuration(body: bytes, is_url: bool) -> None:
    found = judge("up", Head(404, ()), body, now=0.0, hide=())
    if is_url:
        assert isinstance(found, Failure)
        assert found.fault is Fault.WRONG_URL
        assert "base_url" in found.detail
        error = UpstreamFailed.after(found)
        assert (error.status, error.code) == (502, "upstream_error")
    else:
        assert isinstance(found, UpstreamRefused)
        assert found.status == 404


@pytest.mark.parametrize(
    ("status", "message", "line"),
    [
        (503, "The server is overloaded.\nTry again.", "The server is overloaded."),
        (500, "sk-our-own-key at https://api.reseller.example/v1 failed", "*** at the upstream failed"),
        (500, f"cannot continue '{'a prompt of the client ' * 9}' here", 'cannot continue "..." here'),
        (500, f'unfinished "{"words " * 90}', 'unfinished "..."'),
        (500, "x" * 999, "x" * 200),
        (401, "Incorrect API key provided: sk-our***key", ""),
        (500, "", ""),
    ],
)
def test_the_first_line_of_the_message_is_kept_for_operators(status: int, message: str, line: str) -> None:
    found = judged(status, error(message, "server_error"))
    assert isinstance(found, Failure)
    assert found.message == line
    assert not line or line not in repr(found)  # nothing of it gets into a log by way of an exception
    if status == 500:
        in_band = judge_in_band("up", {"message": message, "code": 500}, hide=HIDDEN)
        assert isinstance(in_band, Failure)
        assert in_band.message == line
