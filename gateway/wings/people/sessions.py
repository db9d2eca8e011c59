"""Signed texts for cookies: sessions, and sign-ins under way. Pure.

A cookie holds what the gateway must know, signed with a key of the configuration (HMAC-SHA256), so that every worker
of every gateway reads it without a store. The kind of a text is signed with it: one kind is never taken for another.
Nothing in it is secret from the person whose browser holds it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from gateway.web.admin.permissions import ROLES, Principal, Role

Kind = Literal["session", "sign-in", "csrf"]
MAX_CHARACTERS = 4000
"""Browsers keep cookies of 4,096 bytes."""


def sign(kind: Kind, values: Mapping[str, Any], key: bytes) -> str:
    """A signed text of these values."""
    body = base64.urlsafe_b64encode(json.dumps(values, separators=(",", ":")).encode()).decode().rstrip("=")
    return f"{body}.{_signature(kind, body, key)}"


def read(kind: Kind, text: str, key: bytes, now: float) -> dict[str, Any] | None:
    """The values of a text that `sign` made with this key; None for anything else, and after its `exp`."""
    body, _, signature = text.partition(".")
    if len(text) > MAX_CHARACTERS or not text.isascii():
        return None
    if not hmac.compare_digest(signature, _signature(kind, body, key)):
        return None
    values: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return values if now < values["exp"] else None


def _signature(kind: Kind, body: str, key: bytes) -> str:
    return hmac.new(key, f"{kind}:{body}".encode(), hashlib.sha256).hexdigest()


class Session(NamedTuple):
    """A person who is signed in."""

    id: str
    person: str
    role: Role
    team: str | None
    rules: str
    """The digest of the rules that gave the role: other rules end the session."""
    exp: float
    """Expiry as Unix time in seconds."""

    @staticmethod
    def new_id(now: float) -> str:
        """An id for a session that begins at the Unix time `now`, which the id contains: older gateways refuse a
        session with another member."""
        return f"{int(now * 1000)}.{secrets.token_urlsafe(24)}"

    @property
    def begun(self) -> float:
        """Unix time; 0 for a session of an older gateway."""
        milliseconds, point, _ = self.id.partition(".")
        return int(milliseconds) / 1000 if point else 0.0

    @property
    def principal(self) -> Principal:
        """The principal of a request with this session."""
        return Principal(f"person {self.person}", self.role, self.team, self.person)

    def encode(self, key: bytes) -> str:
        """Returns the session as a signed cookie value."""
        return sign("session", self._asdict(), key)

    def csrf_token(self, key: bytes) -> str:
        """A change has to present it beside the cookie: another site can make a browser send the cookie, not this."""
        return _signature("csrf", self.id, key)

    @classmethod
    def decode(cls, cookie: str, key: bytes, rules: str, now: float) -> Session | None:
        """None for what is no session of these rules at the Unix time `now`."""
        values = read("session", cookie, key, now)
        session = None if values is None else cls(**values)
        return session if session is not None and session.rules == rules and session.role in ROLES else None
