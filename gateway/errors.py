"""Every way a call can be refused or fail, and the OpenAI-shaped body for it.

A `GatewayError` is safe to show: its message names the fault and the remedy, and has no secret and nothing of our own
account. Anything else that is raised is our bug and becomes a 500 without its text. The shape, all four keys always
present, and the style of the messages are those of the OpenAI API (openai-openapi, `Error`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from typing import Any

from .records import Failure, Fault


def error_body(message: str, error_type: str, param: str | None, code: str | None) -> bytes:
    """The OpenAI error object with its four keys, as JSON."""
    error = {"message": message, "type": error_type, "param": param, "code": code}
    return json.dumps({"error": error}, ensure_ascii=False).encode("utf-8", "replace")


NO_RETRY = {"X-Should-Retry": "false"}


class GatewayError(Exception):
    """A refusal or a failure that is sent to a client. Children fix status, type and code; `reason` labels metrics."""

    status = 500
    type = "server_error"
    code: str | None = None
    reason = "internal"
    limit: str | None = None
    """The limit that refused the call, for the log."""
    limit_state: str | None = None
    """The state of that limit, for the log."""
    scan: Any = None
    """The scan of the stream that it ends, if the client has a part of that."""
    is_final = False
    """Whether the same request cannot succeed a little later: `x-should-retry: false` stops the official SDKs, which
    repeat a 409 and a 429, and Claude Code, which repeats a 401 for minutes without a word."""

    def __init_subclass__(cls, **attributes: Any) -> None:
        """Sets attributes of the class: the head of a class is its row in the table of errors."""
        super().__init_subclass__()
        for name, value in attributes.items():
            setattr(cls, name, value)

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.code
        self.headers: Mapping[str, str] = {**(headers or {}), **(NO_RETRY if self.is_final else {})}

    @property
    def name(self) -> str:
        """Its name in logs and traces: its code, or its type if it has none."""
        return self.code or self.type

    def body(self) -> bytes:
        """The JSON that the client reads."""
        return error_body(self.message, self.type, self.param, self.code)


class InvalidRequest(GatewayError, status=400, type="invalid_request_error", reason="invalid_request", is_final=True):
    """400: the client has to change the request; `param` names the parameter."""


class Unauthorized(GatewayError, status=401, type="invalid_request_error", reason="unauthorized"):
    """401: no key, or an unknown one."""

    def __init__(self, message: str, *, code: str | None = None, may_be_renewed: bool = False) -> None:
        """`may_be_renewed`: a client with a helper for its tokens asks it for a new one, and repeats the request."""
        self.is_final = not may_be_renewed
        super().__init__(message, code=code, headers={"WWW-Authenticate": "Bearer"})


class NotFound(GatewayError, status=404, type="invalid_request_error", reason="not_found", is_final=True):
    """404: no such address, or a model that this endpoint does not serve."""


class ModelNotFound(NotFound, code="model_not_found", reason="model_not_found"):
    """404: the model does not exist, or not for this key; the error does not show which."""

    def __init__(self, model: str, near: str | None = None) -> None:
        """`near`: a name that the key may use and that was probably meant."""
        hint = f" Did you mean `{near}`?" if near is not None else ""
        super().__init__(f"The model `{model}` does not exist or you do not have access to it.{hint}")


_MAX_VARIANT = 40
"""Characters of a variant that an error repeats: as many as its row may have."""


class ModelNotPriced(
    GatewayError,
    status=403,
    type="invalid_request_error",
    code="model_not_priced",
    reason="model_not_priced",
    is_final=True,
):
    """403: a quota of money limits the call, and the model, or the variant that it asks for, has no price."""

    def __init__(self, model: str, variant: str = "") -> None:
        of_variant = f" for `{variant[:_MAX_VARIANT]}`" if variant else ""
        other = "Ask for another quality, size or service" if variant else "Use another model"
        super().__init__(
            f"The model `{model}` has no price{of_variant} in the gateway, and your usage is limited in US dollars. "
            f"{other}, or ask the operator of the gateway to give this one a price.",
            param="model",
        )


class Forbidden(
    GatewayError, status=403, type="invalid_request_error", code="read_only_token", reason="forbidden", is_final=True
):
    """403: the token does not allow this operation."""


class MethodNotAllowed(
    GatewayError, status=405, type="invalid_request_error", reason="method_not_allowed", is_final=True
):
    """405: the address exists, this method does not."""


class UpgradeRequired(GatewayError, status=426, type="invalid_request_error", reason="upgrade_required", is_final=True):
    """426: the client asked for a WebSocket, which is not served. Codex then goes on by HTTP at once; after another
    status it tries again."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"The gateway does not serve WebSockets. Send POST {path} over HTTP instead.",
            code="websocket_not_supported",
            headers={"Upgrade": "HTTP/1.1", "Connection": "Upgrade"},
        )


class Conflict(GatewayError, status=409, type="invalid_request_error", reason="conflict"):
    """409: the request is valid, but the current state does not allow it; `code` is the reason."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        self.is_final = code != "changed_meanwhile"
        super().__init__(message, param=param, code=code)


class BodyTimeout(GatewayError, status=408, type="invalid_request_error", reason="body_timeout"):
    """408: the body did not arrive in time."""


class BodyTooLarge(GatewayError, status=413, type="server_error", reason="body_too_large", is_final=True):
    """413, with the type that OpenAI gives it."""


LONGEST_RETRY_MS = 120_000
"""The longest wait that an official SDK sits out by itself (openai-python, MAX_RETRY_AFTER_DELAY)."""


def retry_headers(ms: int) -> dict[str, str]:
    """When to come back: exact in milliseconds, rounded up in seconds; never 0, which openai-python ignores.

    Of a longer wait than `LONGEST_RETRY_MS` openai-node 7 makes one of its own of half a second, twice and for nothing,
    and openai-node 6 sleeps it out, be it an hour. `x-should-retry` makes both raise the error at once.
    """
    ms = max(1, ms)
    headers = {"Retry-After-Ms": str(ms), "Retry-After": str(-(-ms // 1000))}
    return headers if ms <= LONGEST_RETRY_MS else {**headers, **NO_RETRY}


class RateLimited(GatewayError, status=429, code="rate_limit_exceeded", reason="rate_limited"):
    """429: come back in `retry_after_ms`. The unit that ran out is the type, as OpenAI has it: requests or tokens."""

    def __init__(self, message: str, *, unit: str, retry_after_ms: int, headers: Mapping[str, str]) -> None:
        super().__init__(message, headers={**headers, **retry_headers(retry_after_ms)})
        self.type = "tokens" if unit == "tokens" else "requests"


class TooManyWrongTokens(
    GatewayError, status=429, type="requests", code="too_many_wrong_tokens", reason="too_many_wrong_tokens"
):
    """429: wrong tokens from this address; its requests are refused for `wait_s`."""

    def __init__(self, wait_s: float) -> None:
        seconds = "1 second" if wait_s <= 1 else f"{math.ceil(wait_s)} seconds"
        super().__init__(
            f"Too many wrong tokens came from your address. Wait {seconds}, and then send the right one.",
            headers=retry_headers(math.ceil(wait_s * 1000)),
        )


class QuotaSpent(
    GatewayError, status=429, type="insufficient_quota", code="insufficient_quota", reason="quota_spent", is_final=True
):
    """429 that no retry can mend before the window ends; `x-should-retry` is the one signal both SDKs obey."""

    def __init__(self, message: str, *, headers: Mapping[str, str]) -> None:
        super().__init__(message, headers=headers)


class Unavailable(GatewayError, status=503, type="server_error", reason="unavailable"):
    """503: temporarily unavailable; `code` is the reason."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message, code=code, headers=retry_headers(1000))
        self.reason = code


class UpstreamRefused(GatewayError, reason="upstream_refused", is_final=True):
    """The upstream's own 400, 404, 413 or 422, without the gateway's own texts; the client has to change its request.

    `detail` is for the log only, not for the client.
    """

    def __init__(
        self, status: int, message: str, error_type: str, param: str | None, code: str | None, *, detail: str = ""
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.status = status
        self.type = error_type
        self.detail = detail


# fault -> status, code, message. 503 and 429 of the upstream itself keep their status (see UpstreamFailed.after).
_UPSTREAM: dict[Fault, tuple[int, str, str]] = {
    Fault.CONNECT: (502, "upstream_error", "could not be reached"),
    Fault.BUSY: (503, "upstream_busy", "has no free connection; try again in a moment"),
    Fault.TIMEOUT: (504, "upstream_timeout", "did not answer in time"),
    Fault.CUT: (502, "upstream_error", "broke off its answer"),
    Fault.PROTOCOL: (502, "upstream_error", "did not answer in HTTP"),
    Fault.TOO_LARGE: (502, "upstream_error", "sent a longer answer than the gateway takes"),
    Fault.NOT_JSON: (502, "upstream_error", "answered with something that is not JSON"),
    Fault.ENCODING: (502, "upstream_error", "compressed its answer in a way that the gateway cannot decode"),
    Fault.REDIRECT: (502, "upstream_error", "answered with a redirect, which the gateway does not follow"),
    Fault.WRONG_URL: (502, "upstream_error", "does not have this URL; inform the gateway's operator"),
    Fault.STATUS: (502, "upstream_error", "had an error"),
    Fault.RATE_LIMITED: (429, "upstream_rate_limited", "limits the rate of the gateway's account, not of your key"),
    Fault.LIMIT: (
        429,
        "upstream_rate_limited",
        "is used up to a limit of the gateway's account, which all keys share. Retry after the time in Retry-After",
    ),
    Fault.SPENT: (503, "upstream_quota_spent", "has no money left of what the gateway's operator lets it cost"),
    Fault.AUTH: (502, "upstream_auth_failed", "refused the gateway's own credential; inform the gateway's operator"),
    Fault.BALANCE: (502, "upstream_quota_exceeded", "reports that the gateway's balance is spent; inform the operator"),
    Fault.IN_BAND: (502, "upstream_error", "reported an error inside its answer"),
    Fault.UNFIT: (502, "upstream_error", "answered something else than it was asked"),
    Fault.NO_CHANNEL: (503, "upstream_error", "cannot serve it at present"),
    Fault.CIRCUIT_OPEN: (
        503,
        "upstream_error",
        "is temporarily disabled after repeated failures. Retry after the time in Retry-After",
    ),
}  # fmt: skip


class UpstreamFailed(GatewayError, reason="upstream_failed"):
    """Every attempt failed. The last failure decides status, code and message; none of them blames the client."""

    may_try_elsewhere = False
    """Whether nothing may have been billed, so that another model may serve the call."""

    @classmethod
    def after(cls, failure: Failure, *, may_repeat: bool = True, passed: Collection[int] = ()) -> UpstreamFailed:
        """The error that a client sees after this last failure. `passed` are further statuses that it keeps.

        `may_repeat`: whether a repetition may succeed and cannot be billed twice (upstream/retry_policy.py). If not,
        `x-should-retry` stops both official SDKs, which send a call with a 5xx three times otherwise.
        """
        status, code, what = _UPSTREAM[failure.fault]
        if failure.fault is Fault.STATUS and failure.status is not None and failure.status in {503, *passed}:
            status = failure.status
        headers: dict[str, str] = {}
        if status in (429, 503, *passed):
            headers = retry_headers(1000 if failure.retry_after_s is None else math.ceil(failure.retry_after_s * 1000))
        if not may_repeat:
            headers |= NO_RETRY
        error = cls(f"The upstream for this model {what}.", code=code, headers=headers)
        error.status = status
        if status == 429:
            error.type = "requests"
        return error


class StreamInterrupted(GatewayError, status=502, code="stream_interrupted", reason="stream_interrupted"):
    """A stream has ended, and the response with this id goes on without it. After the last event a status makes no
    difference."""

    def __init__(self, response: str) -> None:
        super().__init__(
            f"The stream was interrupted, and the response goes on. Resume it with GET /v1/responses/{response}?stream="
            "true&starting_after=N, where N is the sequence_number of the last event that you have, or read it without "
            "'stream' until its status is final."
        )


def internal_error(request_id: str) -> GatewayError:
    """500: a bug of the gateway. The client gets the request id and nothing else."""
    return GatewayError(
        "The gateway had an error while processing your request. You can retry your request, or inform the "
        f"operator of the gateway (please include the request ID {request_id} in your message)."
    )
