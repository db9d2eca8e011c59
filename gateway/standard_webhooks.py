"""Signatures of what the gateway posts, by which a receiver knows who posted (Standard Webhooks 1.0, "Signature
scheme")."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Annotated

from pydantic import AfterValidator, SecretStr

SIGNED = "whsec_"
"""The beginning of a secret to sign with."""

NOT_READ = f"{SIGNED}{'bm90LXJlYWQh' * 3}"
"""The text in the place of a secret, for commands that do not use it."""


def _has_key(secret: SecretStr) -> SecretStr:
    if signing_key(secret) is None:
        raise ValueError("expected whsec_ and base64 of 24 to 64 bytes: echo whsec_$(openssl rand -base64 32)")
    return secret


SigningSecret = Annotated[SecretStr, AfterValidator(_has_key)]


def signing_key(secret: SecretStr | None) -> bytes | None:
    """The bytes to sign with; None: there is no secret, or the text has not the form."""
    text = "" if secret is None else secret.get_secret_value()
    try:
        key = base64.b64decode(text.removeprefix(SIGNED), validate=True) if text.startswith(SIGNED) else b""
    except binascii.Error:
        return None
    return key if 24 <= len(key) <= 64 else None


def signature(key: bytes | None, body: bytes, now: int) -> dict[str, str]:
    """The headers of a post with this body; without a key, none. The id is the same for every attempt, so that the
    receiver can leave out what it has."""
    if key is None:
        return {}
    name = f"msg_{hashlib.sha256(body).hexdigest()[:32]}"
    signed = hmac.digest(key, b"%s.%d." % (name.encode(), now) + body, "sha256")
    return {
        "webhook-id": name,
        "webhook-timestamp": str(now),
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }
