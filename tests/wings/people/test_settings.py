"""Warnings about the sections `oidc` and `jwt`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.config import build
from gateway.config.probable_mistakes import warnings_of

VALUES: dict[str, Any] = {
    "upstreams": {"up": {"base_url": "https://api.example.com/v1", "api_key": "k"}},
    "models": {"m": {"routes": [{"upstream": "up"}], "max_output_tokens": 1}},
}
ENTRA = "https://login.microsoftonline.com/t/v2.0"
JWT = {"issuer": ENTRA, "audiences": ["gateway"], "jwks_url": "https://login.microsoftonline.com/t/keys"}
OIDC = {
    "issuer": ENTRA, "client_id": "gateway", "redirect_url": "https://gateway.example.org/admin/sign-in/callback",
    "session_key": "0123456789abcdef0123456789abcdef",
}  # fmt: skip


def warned(**sections: Any) -> dict[str, str]:
    found = warnings_of(build({**VALUES, **sections}), datetime.now(UTC))
    return {each.path: each.message for each in found if each.path.startswith(("oidc", "jwt"))}


@pytest.mark.parametrize(("name", "section"), [("jwt", JWT), ("oidc", OIDC)])
def test_addresses_that_a_provider_does_not_verify_are_warned_of(name: str, section: dict[str, Any]) -> None:
    (place, message), *others = warned(**{name: section}).items()
    assert (place, others) == (f"{name}.person_claim", [])
    assert "does not state whether an address was verified" in message
    assert warned(**{name: {**section, "person_claim": "oid"}}) == {}
    assert warned(**{name: {**section, "issuer": "https://id.example.org"}}) == {}


def test_a_secret_of_the_sign_in_that_is_used_elsewhere_is_warned_of() -> None:
    secret = OIDC["session_key"]
    found = warned(oidc={**OIDC, "person_claim": "oid"}, admin={"token": secret})
    assert found == {"oidc.session_key": "is the same secret as admin.token: one leak opens both"}
