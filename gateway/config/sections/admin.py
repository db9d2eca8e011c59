"""`admin`: tokens and the listener of the admin API."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, field_validator, model_validator

from .keys import NAME_PATTERN
from .values import Moment, Secret, Section

_ADDRESS = re.compile(
    r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):"
    r"(?P<port>6553[0-5]|655[0-2]\d|65[0-4]\d\d|6[0-4]\d{3}|[1-5]\d{4}|\d{1,4})"
)


def _long_token(token: SecretStr) -> SecretStr:
    if len(token.get_secret_value()) < 16:
        raise ValueError("a token needs at least 16 characters")
    return token


LongToken = Annotated[Secret, AfterValidator(_long_token)]


class AdminToken(Section):
    token: LongToken
    """Bearer token; at least 16 characters."""
    expires: Moment | None = None
    """When the token ceases to work: 2027-01-01 or 2027-01-01T00:00:00Z; without a zone, in UTC."""
    previous_token: LongToken | None = None
    """The token before the last rotation, which works on until previous_until."""
    previous_until: Moment | None = None
    """When the previous token ceases to work."""
    role: Literal["operator", "lead", "viewer"]
    """operator may do everything, lead manages the keys of one team, viewer reads everything."""
    team: Annotated[str, Field(min_length=1)] | None = None
    """The team of a lead."""

    @model_validator(mode="after")
    def _a_lead_has_a_team(self) -> Self:
        if (self.role == "lead") != (self.team is not None):
            raise ValueError("a lead needs a team" if self.role == "lead" else "only a lead has a team; remove it")
        if (self.previous_token is None) != (self.previous_until is None):
            raise ValueError("previous_token and previous_until belong together: a rotation has a token and an end")
        return self


class AdminSettings(Section):
    token: LongToken | None = None
    """Bearer token of the admin API for operators."""
    viewer_token: LongToken | None = None
    """May read the dashboard and reports, and nothing else."""
    tokens: dict[str, AdminToken] = {}
    """More tokens of the admin API, by the name that the audit log shows."""
    listen: str | None = None
    """host:port of its own for the admin API, the dashboard and the metrics; null: the same as for calls."""

    @field_validator("listen")
    @classmethod
    def _is_address(cls, listen: str | None) -> str | None:
        if listen is not None and not _ADDRESS.fullmatch(listen):
            raise ValueError("expected host:port, such as 127.0.0.1:9090 or [::1]:9090")
        return listen

    @field_validator("tokens")
    @classmethod
    def _have_plain_names(cls, tokens: dict[str, AdminToken]) -> dict[str, AdminToken]:
        for name in tokens:
            if not re.fullmatch(NAME_PATTERN, name):
                raise ValueError(
                    f"{name[:64]!r} is no name of a token: expected small letters, digits, '_', '.' and '-', a letter "
                    "or digit first, 63 at most"
                )
        return tokens

    @model_validator(mode="after")
    def _all_differ(self) -> Self:
        first: dict[str, tuple[str, ...]] = {}
        for place, token in self.by_place().items():
            if (other := first.setdefault(token.get_secret_value(), place)) != place:
                raise ValueError(f"{'.'.join(place)} is the same as {'.'.join(other)}; each needs its own")
        return self

    def by_place(self) -> dict[tuple[str, ...], SecretStr]:
        """Every token that is set, by its setting within `admin`."""
        found: dict[tuple[str, ...], SecretStr | None] = {("token",): self.token, ("viewer_token",): self.viewer_token}
        for name, each in self.tokens.items():
            found |= {("tokens", name, "token"): each.token, ("tokens", name, "previous_token"): each.previous_token}
        return {place: token for place, token in found.items() if token is not None}

    @property
    def is_on(self) -> bool:
        """Whether there is an admin API."""
        return self.token is not None or bool(self.tokens)

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of its own listener; None: it has none."""
        if self.listen is None or (found := _ADDRESS.fullmatch(self.listen)) is None:
            return None
        return found["host"].strip("[]"), int(found["port"])

    @field_validator("viewer_token")
    @classmethod
    def _lesser_than_another(cls, viewer: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if viewer is None or "token" not in info.data:  # which has a fault of its own
            return viewer
        if info.data["token"] is None:
            raise ValueError("needs admin.token beside it, without which there is no admin API")
        if info.data["token"].get_secret_value() == viewer.get_secret_value():
            raise ValueError("is the same as admin.token, so every viewer could change everything")
        return viewer
