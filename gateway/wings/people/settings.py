"""`oidc` and `jwt`: people who sign in, and clients with tokens of an identity provider."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Annotated, ClassVar, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from gateway.config.faults import ConfigFault, format_faults
from gateway.config.sections import Config, GivenRole, IdentityProvider, SafeUrl, Section
from gateway.config.sections.values import NOT_BOOL, certificates
from gateway.config.wings import WingSection

WITHOUT_VERIFIED_ADDRESSES = frozenset({"login.microsoftonline.com", "login.microsoftonline.us", "sts.windows.net"})
"""Identity providers whose tokens have addresses without verification."""

P = TypeVar("P", "OidcSettings", "JwtSettings")


def _has_joserfc() -> bool:
    return find_spec("joserfc") is not None


class RoleRule(Section):
    group: Annotated[str, Field(min_length=1)] | None = None
    """All persons in this group."""
    person: Annotated[str, Field(min_length=1)] | None = None
    """This person alone."""
    role: Literal["operator", "lead", "member", "viewer"]
    """The role that she gets."""
    team: Annotated[str, Field(min_length=1)] | None = None
    """The team of a lead."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.group is None) == (self.person is None):
            raise ValueError("expected exactly one of group, person")
        if (self.role == "lead") != (self.team is not None):
            raise ValueError("a lead needs a team" if self.role == "lead" else "only a lead has a team; remove it")
        return self


class NotAllowed(Exception):
    """A person may not sign in; the text is the reason, shown to her."""

    def __init__(self, text: str, lacking: str | None = None) -> None:
        super().__init__(text)
        self.lacking = lacking
        """The person, where she lacks a group or a role alone."""


class OidcSettings(IdentityProvider):
    gives_roles: ClassVar[bool] = True

    issuer: SafeUrl
    """The provider's issuer, exactly as it writes itself, such as https://login.example.org."""
    client_id: Annotated[str, Field(min_length=1)]
    """The client that is registered there for the gateway."""
    client_secret: SecretStr | None = None
    """Its secret; null for a public client."""
    redirect_url: SafeUrl
    """The gateway's address for people, with the path /admin/sign-in/callback; it is registered at the provider."""
    session_key: SecretStr
    """Signs sessions; at least 32 characters, the same for all gateways; another one ends every session."""
    session_s: Annotated[float, NOT_BOOL, Field(ge=60, le=604800)] = 28800
    """After how long a person has to sign in again."""
    scopes: tuple[str, ...] = ("openid", "email", "profile")
    """The scopes that the provider is asked for."""
    person_claim: Annotated[str, Field(min_length=1)] = "email"
    """The claim that names a person; it is the owner of her keys."""
    groups_claim: Annotated[str, Field(min_length=1)] = "groups"
    """The claim that has her groups."""
    domains: tuple[str, ...] = ()
    """Domains of e-mail addresses that may sign in; default: all."""
    groups: tuple[str, ...] = ()
    """Groups of which one is needed to sign in; default: none is needed."""
    roles: tuple[RoleRule, ...] = ()
    """Rules for roles; the first one that fits a person counts."""
    default_role: Literal["member", "viewer"] | None = "member"
    """The role of whom no rule fits; null: she may not sign in."""
    clock_skew_s: Annotated[float, NOT_BOOL, Field(ge=0, le=600)] = 60
    """How far the clocks of the provider and the gateway may differ."""
    ca_file: str | None = None
    """Certificates in PEM that the provider's is checked with, in place of the system's."""

    @field_validator("issuer")
    @classmethod
    def _can_be_used(cls, issuer: str) -> str:
        if urlsplit(issuer).query:
            raise ValueError("expected an address without a query")
        if not _has_joserfc():
            raise ValueError("needs packages that are not installed: pip install 'completions-gateway[oidc]'")
        return issuer

    @field_validator("redirect_url")
    @classmethod
    def _leads_back(cls, url: str) -> str:
        if not urlsplit(url).path.endswith("/admin/sign-in/callback") or urlsplit(url).query:
            raise ValueError("expected an address that ends in /admin/sign-in/callback")
        return url

    @field_validator("session_key")
    @classmethod
    def _is_long(cls, key: SecretStr) -> SecretStr:
        if len(key.get_secret_value()) < 32:
            raise ValueError("expected at least 32 characters")
        return key

    @field_validator("scopes")
    @classmethod
    def _has_openid(cls, scopes: tuple[str, ...]) -> tuple[str, ...]:
        if "openid" not in scopes:
            raise ValueError("expected openid among the scopes")
        return scopes

    @field_validator("ca_file")
    @classmethod
    def _is_readable(cls, path: str | None) -> str | None:
        return None if path is None else certificates(path)

    @cached_property
    def rules(self) -> str:
        """A digest of all settings that decide which person may sign in, and with which role."""
        names = ("issuer", "client_id", "person_claim", "groups_claim", "domains", "groups", "roles", "default_role")
        text = self.model_dump_json(include=set(names))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def role_of(self, name: str, groups: Collection[str]) -> GivenRole | None:
        try:
            return self.find_role(name, groups)
        except NotAllowed:
            return None

    def find_role(self, name: str, groups: Collection[str]) -> GivenRole:
        """The same. Raises `NotAllowed`."""
        if self.domains:
            domain = name.rpartition("@")[2].lower() if "@" in name else None
            if domain not in [each.lower() for each in self.domains]:
                raise NotAllowed("Your e-mail address is of no domain that may sign in here.")
        if self.groups and set(self.groups).isdisjoint(groups):
            raise NotAllowed("You are in no group that may sign in here.", name)
        for rule in self.roles:
            if rule.person == name or (rule.group is not None and rule.group in groups):
                return GivenRole(rule.role, rule.team)
        if self.default_role is None:
            raise NotAllowed("No role is given to you here. Ask an operator of the gateway.", name)
        return GivenRole(self.default_role)


class JwtSettings(IdentityProvider):
    issuer: Annotated[str, Field(min_length=1)]
    """The issuer of the tokens, exactly as they name it."""
    audiences: Annotated[tuple[str, ...], Field(min_length=1)]
    """Audiences of which a token must have one: the name of this gateway at the issuer."""
    jwks_url: SafeUrl
    """Where the issuer's public keys are."""
    person_claim: Annotated[str, Field(min_length=1)] = "email"
    """The claim that names a person; it is the owner of her record."""
    team_claim: Annotated[str, Field(min_length=1)] | None = None
    """The claim that names her team, which must exist; null: no claim does."""
    models_claim: Annotated[str, Field(min_length=1)] | None = None
    """The claim that lists the models that the token is for; null: those of her record."""
    clock_skew_s: Annotated[float, NOT_BOOL, Field(ge=0, le=600)] = 60
    """How far the clocks of the issuer and the gateway may differ."""
    ca_file: str | None = None
    """Certificates in PEM that the issuer's is checked with, in place of the system's."""

    @field_validator("issuer")
    @classmethod
    def _can_be_used(cls, issuer: str) -> str:
        if not _has_joserfc():
            raise ValueError("needs packages that are not installed: pip install 'completions-gateway[oidc]'")
        return issuer

    @field_validator("ca_file")
    @classmethod
    def _is_readable(cls, path: str | None) -> str | None:
        return None if path is None else certificates(path)


def settings_of(config: Config, kind: type[P]) -> P | None:
    """The section of this kind; None: the file has none."""
    return next(iter(config.sections(kind)), None)


def _unverified_names(kind: type[P], name: str, config: Config) -> Iterator[ConfigFault]:
    """Tokens of Entra name no `email_verified`, and an administrator of any tenant writes any address."""
    settings = settings_of(config, kind)
    if settings is not None and settings.person_claim == "email":
        host = urlsplit(settings.issuer).hostname or ""
        if host in WITHOUT_VERIFIED_ADDRESSES:
            yield ConfigFault(
                format_faults((name, "person_claim")),
                f"is email, and {host} does not state whether an address was verified: a person can have another's "
                "address there and would own her keys; write oid, or sub",
            )


OIDC = WingSection(
    "oidc", OidcSettings, warnings=partial(_unverified_names, OidcSettings, "oidc"),
    secrets={"oidc/client_secret": "", "oidc/session_key": ""}, is_optional=True, has_own_secrets=True,
)  # fmt: skip
JWT = WingSection("jwt", JwtSettings, warnings=partial(_unverified_names, JwtSettings, "jwt"), is_optional=True)
