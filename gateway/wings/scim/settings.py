"""The section `scim`: the token of the identity provider, and which attribute names a person."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, SecretStr

from gateway.config.sections import Section
from gateway.config.sections.values import Secret
from gateway.config.wings import WingSection


def _long(token: SecretStr) -> SecretStr:
    if len(token.get_secret_value()) < 24:
        raise ValueError("a token needs at least 24 characters")
    return token


LongToken = Annotated[Secret, AfterValidator(_long)]


class ScimSettings(Section):
    token: LongToken | None = None
    """Bearer token of the identity provider, at least 24 characters; null: there is no SCIM."""
    previous_token: LongToken | None = None
    """The token before, while the provider is given the new one."""
    person: Literal["userName", "externalId", "email"] = "userName"
    """The attribute that names a person as oidc.person_claim does, and so the owner of her keys."""


SECTION = WingSection("scim", ScimSettings, ("token", "previous_token"))
