"""`upstreams.NAME.auth`: the authorization of the requests to an upstream."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from gateway.config.sections import Section
from gateway.config.sections.values import SafeUrl, SomeSeconds, plain_path

Text = Annotated[str, Field(min_length=1)]

PACKAGES: Mapping[str, tuple[str, str]] = {
    "google": ("google.auth", "google-auth"),
    "azure": ("azure.identity", "azure-identity"),
    "aws": ("botocore", "botocore"),
}
"""The module that a kind of `auth` needs, and its package. The extra has the name of the kind."""

_FOR: Mapping[str, str] = {
    "key": "",
    "command": "command",
    "oauth": "token_url client_id client_secret scopes audience",
    "google": "file scopes impersonate",
    "azure": "tenant_id client_id client_secret file scopes",
    "aws": "region service profile access_key_id secret_access_key session_token role_arn external_id",
}
"""The settings that each kind has beside `type` and `within_s`."""

_NEEDS_OTHER: Mapping[str, str] = {
    "access_key_id": "secret_access_key", "secret_access_key": "access_key_id", "session_token": "access_key_id",
    "external_id": "role_arn",
}  # fmt: skip
"""Settings that mean nothing without another one."""

_NEEDS: Mapping[str, str] = {"command": "command", "oauth": "token_url client_id client_secret"}


def has_package(kind: str) -> bool:
    """Whether the package is there that this kind of `auth` needs; it is not loaded for this."""
    if kind not in PACKAGES:
        return True
    try:
        return find_spec(PACKAGES[kind][0]) is not None
    except ImportError:
        return False


def _of_one_word(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


class Auth(Section):
    type: Literal["key", "command", "oauth", "google", "azure", "aws"] = "key"
    """The authorization of requests: api_key, a token of a program, a token endpoint or a cloud, or AWS' signatures."""
    command: tuple[Text, ...] = ()
    """The program that prints a token and its end as JSON, and its arguments; no shell reads it."""
    token_url: SafeUrl | None = None
    """The token endpoint of an OAuth 2.0 provider."""
    tenant_id: Text | None = None
    """The tenant of a service principal of Entra ID."""
    client_id: Text | None = None
    """The client at the token endpoint, the service principal, or the managed identity that is meant."""
    client_secret: SecretStr | None = None
    """The secret of that client."""
    file: Annotated[Text, Field(strict=True)] | None = None
    """Google: a file of credentials; Azure: the certificate of the service principal, in PEM, with its key."""
    scopes: tuple[Text, ...] = ()
    """The scopes that are asked for; default: those that the cloud's models need."""
    audience: Text | None = None
    """A further parameter of the token endpoint, which some providers want."""
    impersonate: Text | None = None
    """The e-mail address of the Google service account for which the token is."""
    region: Text | None = None
    """The region of AWS that signatures are for; default: the one in base_url."""
    service: Text | None = None
    """The service of AWS that signatures are for; default: bedrock, or bedrock-mantle by base_url."""
    profile: Text | None = None
    """The profile of AWS' configuration file; default: AWS_PROFILE, or the first credentials of AWS' chain."""
    access_key_id: Text | None = None
    """An access key of AWS, in place of those that its chain finds."""
    secret_access_key: SecretStr | None = None
    """The secret of that access key."""
    session_token: SecretStr | None = None
    """The session of that access key, if it is a temporary one."""
    role_arn: Text | None = None
    """The role of AWS that is assumed with these credentials."""
    external_id: Text | None = None
    """The external id that the role asks for."""
    within_s: SomeSeconds = 10
    """How long a renewal may take."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        own = {"type", "within_s", *_FOR[self.type].split()}
        if strange := sorted(self.model_fields_set - own):
            raise ValueError(f"{', '.join(strange)}: not for type {self.type}, which has {_FOR[self.type] or 'none'}")
        for name in _NEEDS.get(self.type, "").split():
            if not getattr(self, name):
                raise ValueError(f"type {self.type} needs {name}")
        if self.type == "azure" and (self.client_secret or self.file) and not (self.tenant_id and self.client_id):
            raise ValueError("client_secret and file need tenant_id and client_id")
        if self.client_secret is not None and self.type == "azure" and self.file is not None:
            raise ValueError("expected either client_secret or file")
        for name, needed in _NEEDS_OTHER.items():
            if getattr(self, name) is not None and getattr(self, needed) is None:
                raise ValueError(f"{name} needs {needed}")
        if self.access_key_id is not None and self.profile is not None:
            raise ValueError("expected either access_key_id or profile")
        if self.file is not None:
            plain_path(self.file)
        if not has_package(self.type):
            package = PACKAGES[self.type][1]
            raise ValueError(
                f"type {self.type} needs the package {package}: pip install 'completions-gateway[{self.type}]'"
            )
        return self

    @property
    def renews(self) -> bool:
        """Whether something has to be obtained and renewed."""
        return self.type != "key"


ReadAuth = Annotated[Auth, BeforeValidator(_of_one_word)]
