"""`admin`: tokens and the listener of the admin API."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, field_validator, model_validator

from .keys import NAME_PATTERN
from .values import Secret, Section

_ADDRESS = re.compile(
    r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:\[\]]+):"
    r"(?P<port>6553[0-5]|655[0-2]\d|65[0-4]\d\d|6[0-4]\d{3}|[1-5]\d{4}|\d{1,4})"
)


def _long_token(token: SecretStr) -> SecretStr:
    if len(token.get_secret_value()) < 16:
        raise ValueError("a token needs at least 16 characters")
    return token


class AdminToken(Section):
    token: Annotated[Secret, AfterValidator(_long_token)]
    """Bearer token; at least 16 characters."""
    role: Literal["operator", "lead", "viewer"]
    """operator may do everything, lead manages the keys of one team, viewer reads everything."""
    team: Annotated[str, Field(min_length=1)] | None = None
    """The team of a lead."""

    @model_validator(mode="after")
    def _a_lead_has_a_team(self) -> Self:
        if (self.role == "lead") != (self.team is not None):
            raise ValueError("a lead needs a team" if self.role == "lead" else "only a lead has a team; remove it")
        return self


class AdminSettings(Section):
    token: Secret | None = None
    """Bearer token of the admin API for operators."""
    viewer_token: Secret | None = None
    """May read the dashboard and reports, and nothing else."""
    tokens: dict[str, AdminToken] = {}
    """More tokens of the admin API, by the name that the audit log shows."""
    listen: str | None = None
    """host:port of its own for the admin API, the dashboard and the metrics; null: the same as for calls."""

    @field_validator("token", "viewer_token")
    @classmethod
    def _long_enough(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and len(token.get_secret_value()) < 16:
            raise ValueError("a token needs at least 16 characters")
        return token

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
        first: dict[str, str] = {}
        for name, token in (("token", self.token), ("viewer_token", self.viewer_token)):
            if token is not None:
                first[token.get_secret_value()] = name
        for name, each in self.tokens.items():
            if (other := first.setdefault(each.token.get_secret_value(), f"tokens.{name}")) != f"tokens.{name}":
                raise ValueError(f"tokens.{name} is the same as {other}; each needs its own")
        return self

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
