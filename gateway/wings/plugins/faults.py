"""The errors that clients get from plug-ins: a refusal in its words, and a fault without any."""

from __future__ import annotations

from gateway.errors import GatewayError

from .interface import Refuse

MAX_MESSAGE = 2000
_MAX_CODE = 64
_MAY_REPEAT = frozenset({408, 409, 429})
"""Statuses below 500 that official SDKs answer with a repetition (openai-python, `_should_retry`)."""


class PluginFailed(GatewayError, code="plugin_failed", reason="plugin_failed", is_final=True):
    """500: a fault of a plug-in, which a repetition would meet again. Its text is in the log alone."""

    def __init__(self, request_id: str) -> None:
        super().__init__(
            "A plug-in of the gateway had an error while processing your request. Inform the operator of the gateway "
            f"(please include the request ID {request_id} in your message)."
        )


class PluginRefused(GatewayError, code="refused_by_plugin", reason="plugin_refused"):
    """The refusal of a plug-in, with its own status and code."""

    def __init__(self, refusal: Refuse) -> None:
        """Raises `ValueError` for a refusal that no client could read."""
        # A class derived from `Refuse` may have none of them.
        status, code, message = [getattr(refusal, each, None) for each in ("status", "code", "message")]
        if type(status) is not int or not 400 <= status <= 599:
            raise ValueError("the status of a refusal is a number from 400 to 599")
        if not isinstance(code, str) or not code.isidentifier() or len(code) > _MAX_CODE:
            raise ValueError(f"the code of a refusal has letters, digits and _, and at most {_MAX_CODE} of them")
        if not isinstance(message, str) or not message.strip():
            raise ValueError("the message of a refusal is a text that is not empty")
        self.status = status
        self.type = "server_error" if status >= 500 else "requests" if status == 429 else "invalid_request_error"
        self.is_final = status < 500 and status not in _MAY_REPEAT
        super().__init__(message[:MAX_MESSAGE], code=code)
