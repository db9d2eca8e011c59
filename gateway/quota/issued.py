"""Keys and teams created at run time: the content of their documents, and how each change makes the next document.

A document is what a store keeps (store/key_store.py): JSON, with settings in the form of the configuration file. It
holds the SHA-256 of the secret. An overlay holds the changes of a key or team beyond its settings: pause, top-up,
revocation.

Times are Unix seconds.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from gateway.config import KeySettings, PersonLimits, Quota, Team, is_expired, shown_key, shown_quotas, shown_team
from gateway.config.sections import NAME_PATTERN, PERSON_DEFAULTS, ROLE_PREFIX, folded_name
from gateway.records import Unit

from .pricing import usd

MAX_LIVE_SECRETS = 2
"""Maximum number of valid secrets of a key: the newest one, and the previous one while their overlap lasts."""

SECRET_PATTERN = f"sk-gw-{NAME_PATTERN}-[A-Za-z0-9_-]{{43}}"
_ISSUED = re.compile(SECRET_PATTERN)


def format_secret(name: str, random: str) -> str:
    """The secret of a key, around 43 characters of chance (256 bits)."""
    assert len(random) == 43
    return f"sk-gw-{name}-{random}"


def may_be_issued(secret: str) -> bool:
    """Whether a secret has the form of those that are handed out; nothing else can lead to such a key."""
    return _ISSUED.fullmatch(secret) is not None


_PERSON = re.compile("person-[a-z0-9_.-]{0,36}-[0-9a-f]{12}")


def person_id(name: str) -> str:
    """The id of the record of a person who calls with tokens of an identity provider."""
    plain = re.sub("[^a-z0-9_.-]", "-", name.lower())[:36]
    return f"person-{plain}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def is_person_id(name: str) -> bool:
    """Whether an id has the form of those of persons, which no key has that is made with a secret."""
    return _PERSON.fullmatch(name) is not None


def person_digest(issuer: str, name: str) -> bytes:
    """The entry for a person of this issuer in the index of secrets. No request can present its text as a secret:
    no header has a NUL."""
    return hashlib.sha256(f"\0person\0{issuer}\0{name}".encode("utf-8", "surrogatepass")).digest()


class SecretOf(NamedTuple):
    """One secret of a key."""

    sha256: str
    created_at: float
    until: float | None = None
    """When it ceases to work; None: not before the key does."""


_YOUNGER: Mapping[str, Any] = {
    "owner": None, "note": None, "labels": {}, "priority": "normal", "weight": 1, "max_wait_s": None,
}  # fmt: skip
"""Settings that not every gateway knows, with their defaults."""


class Pause(NamedTuple):
    """A key is refused for the time being."""

    at: float
    by: str
    """The role of the principal that paused it: a lesser one may not resume it."""


def _read_pause(found: list[Any] | None) -> Pause | None:
    return None if found is None else Pause(*found)


def _without_pause(values: dict[str, Any]) -> dict[str, Any]:
    """Removes the member `paused` if there is no pause, because the previous version does not know it."""
    return {name: value for name, value in values.items() if name != "paused" or value is not None}


class IssuedKey(NamedTuple):
    """The document of a key in the store."""

    settings: KeySettings
    secrets: tuple[SecretOf, ...]
    """Secrets of the key, the newest first."""
    created_at: float
    updated_at: float
    revoked_at: float | None = None
    paused: Pause | None = None

    def encode(self) -> str:
        settings = shown_key(self.settings)
        for name, default in _YOUNGER.items():
            # A gateway of the version before refuses a key with settings that it does not know.
            if settings[name] in (None, "", default):
                del settings[name]
        return _encode(_without_pause(self._asdict()) | {"settings": settings})

    @classmethod
    def decode(cls, text: str) -> IssuedKey:
        """Raises `ValueError` for what this gateway cannot read."""
        with _unreadable():
            values = json.loads(text)
            secrets = tuple(SecretOf(*secret) for secret in values.pop("secrets"))
            settings = KeySettings.model_validate(values.pop("settings"))
            return cls(settings=settings, secrets=secrets, paused=_read_pause(values.pop("paused", None)), **values)

    def rotated(self, sha256: str, now: float, overlap_s: float) -> IssuedKey:
        """Returns the key with a new secret. The one before works for `overlap_s` seconds more, and no older one
        works."""
        until = now + overlap_s
        before = [
            secret._replace(until=until if secret.until is None else min(until, secret.until))
            for secret in self.secrets[: MAX_LIVE_SECRETS - 1]
            if overlap_s > 0 and not is_over(secret, now)
        ]
        return self._replace(secrets=(SecretOf(sha256, now), *before), updated_at=now)

    def with_settings(self, settings: KeySettings, now: float) -> IssuedKey:
        """The same key, allowed something else."""
        return self._replace(settings=settings, updated_at=now)

    def with_pause(self, pause: Pause | None, now: float) -> IssuedKey:
        """Refused until it is resumed, or (None) no longer."""
        return self._replace(paused=pause, updated_at=now)

    def revoked(self, now: float) -> IssuedKey:
        return self._replace(revoked_at=now, updated_at=now)


def is_over(secret: SecretOf, now: float) -> bool:
    """Whether a secret has been replaced, and its overlap is over."""
    return secret.until is not None and now >= secret.until


class IssuedTeam(NamedTuple):
    """The document of a team in the store."""

    settings: Team
    created_at: float
    updated_at: float

    def encode(self) -> str:
        settings = shown_team(self.settings)
        if settings["members"] is None:  # a gateway of the version before refuses a setting that it does not know
            del settings["members"]
        elif not settings["members"]["by_key"]:
            del settings["members"]["by_key"]
        if not settings["member_quotas"]:
            del settings["member_quotas"]
        return _encode(self._asdict() | {"settings": settings})

    @classmethod
    def decode(cls, text: str) -> IssuedTeam:
        """Raises `ValueError` for what this gateway cannot read."""
        with _unreadable():
            values = json.loads(text)
            return cls(settings=Team.model_validate(values.pop("settings")), **values)


class TopUp(NamedTuple):
    """An amount that one window of a day, week or month has beyond its quota."""

    unit: Unit
    per: str
    model: str | None
    starts: str
    """The window's own name: `2026-11-20`, `2026-W47`, `2026-11`."""
    amount: int
    """Amount in units of the window."""


class SeenValues(NamedTuple):
    """The values of a label that tags brought in a month, which have windows of their own (`labels.py`)."""

    month: str = ""
    values: Mapping[str, str] = MappingProxyType({})
    """The id of the key that brought each."""


class Overlay(NamedTuple):
    """The changes that operators made to a key or team of the file, and to a person."""

    revoked_at: float | None = None
    """Unix time in seconds. Of a key of the file only; the document of a key of the store has it itself. Of a person:
    when her sessions were ended."""
    top_ups: tuple[TopUp, ...] = ()
    paused: Pause | None = None
    """Pause of a key of the file only; a key of the store has its own. Of a person: her access has ended."""
    quotas: tuple[Quota, ...] | None = None
    """A person's own quotas, in place of those of the role or of all people."""
    role: str | None = None
    """Role of a person's last sign-in, where roles have quotas."""
    more: Mapping[str, Any] = MappingProxyType({})
    """Facts of wings and of other versions, which are kept as they are."""
    seen: SeenValues | None = None
    """Noted values of a label; None of anything else."""

    def encode(self) -> str:
        values = _without_pause(self._asdict()) | {
            "quotas": self.quotas and shown_quotas(self.quotas),
            "seen": self.seen and [self.seen.month, {**self.seen.values}],
        }
        for name in ("quotas", "role", "seen"):
            if getattr(self, name) is None:
                del values[name]
        return _encode({**values.pop("more"), **values})

    @classmethod
    def decode(cls, text: str) -> Overlay:
        """Raises `ValueError` for what this gateway cannot read."""
        with _unreadable():
            values = json.loads(text)
            top_ups = tuple(TopUp(*top_up) for top_up in values["top_ups"])
            quotas, seen = values.get("quotas"), values.get("seen")
            return cls(
                values["revoked_at"],
                top_ups,
                _read_pause(values.get("paused")),
                None if quotas is None else tuple([Quota.model_validate(quota) for quota in quotas]),
                values.get("role"),
                {name: value for name, value in values.items() if name not in cls._fields},
                None if seen is None else SeenValues(seen[0], dict(seen[1])),
            )

    def topped_up(self, more: TopUp) -> Overlay:
        """Returns the overlay with this top-up added. Drops top-ups for earlier windows of this length."""
        kept, amount = [], more.amount
        for known in self.top_ups:
            if known[:4] == more[:4]:
                amount += known.amount
            elif known.per != more.per or known.starts >= more.starts:
                kept.append(known)
        return self._replace(top_ups=(*kept, more._replace(amount=amount)))


def topped_up(top_ups: Iterable[TopUp], unit: Unit, per: str, model: str | None) -> Mapping[str, int]:
    """Returns the amounts of the top-ups of one quota, by the names of their windows."""
    return {top_up.starts: top_up.amount for top_up in top_ups if top_up[:3] == (unit, per, model)}


@contextmanager
def _unreadable() -> Iterator[None]:
    """Raises `ValueError` if another version wrote the document: it may lack a member, or have one too many."""
    try:
        yield
    except (LookupError, TypeError) as error:
        raise ValueError(f"a document of another version: {error}") from None


def _encode(values: Mapping[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=True, separators=(",", ":"), sort_keys=True)


# ------------------------------------------------------------------------------------------------------ how it is shown


def show_key(key: IssuedKey, now: float) -> dict[str, Any]:
    """A key of the store, as it is shown. Of its secrets only since and until when they are good."""
    secrets = [secret for secret in key.secrets if not is_over(secret, now)]
    return {
        "object": "key",
        **shown_key(key.settings),
        "managed_by": "store",
        "status": _status(key.settings, key.revoked_at, key.paused, now),
        "created_at": format_time(key.created_at),
        "updated_at": format_time(key.updated_at),
        "revoked_at": format_time(key.revoked_at),
        "paused_at": format_time(key.paused.at) if key.paused else None,
        "secrets": [
            {"created_at": format_time(each.created_at), "expires_at": format_time(each.until)} for each in secrets
        ],
    }


def show_file_key(settings: KeySettings, overlay: Overlay, now: float) -> dict[str, Any]:
    """A key of the file, as it is shown."""
    return {
        "object": "key", **shown_key(settings), "managed_by": "file",
        "status": _status(settings, overlay.revoked_at, overlay.paused, now),
        "created_at": None, "updated_at": None, "revoked_at": format_time(overlay.revoked_at),
        "paused_at": format_time(overlay.paused.at) if overlay.paused else None,
        "secrets": [{"created_at": None, "expires_at": None}],
    }  # fmt: skip


def show_team(name: str, settings: Team, issued: IssuedTeam | None = None) -> dict[str, Any]:
    """A team as it is shown; `issued` where the store keeps it."""
    return {
        "object": "team", "name": name, **shown_team(settings), "managed_by": "file" if issued is None else "store",
        "created_at": format_time(issued.created_at) if issued else None,
        "updated_at": format_time(issued.updated_at) if issued else None,
    }  # fmt: skip


def show_top_ups(overlay: Overlay) -> list[dict[str, Any]]:
    """The top-ups as they are shown; money in USD."""
    return [
        {"unit": unit, "per": per, "model": model, "window": starts, "amount": usd(amount) if unit == "usd" else amount}
        for unit, per, model, starts, amount in overlay.top_ups
    ]


def _status(settings: KeySettings, revoked_at: float | None, paused: Pause | None, now: float) -> str:
    if revoked_at is not None:
        return "revoked"
    if is_expired(settings.expires, now):
        return "expired"
    return "active" if paused is None else "paused"


def format_time(moment: float | None) -> str | None:
    """A moment in UTC, to the second."""
    return None if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


UNLIMITED = PersonLimits()
"""The limits of a person where none are configured."""


def person_limits(people: Mapping[str, PersonLimits], name: str, overlay: Overlay | None) -> PersonLimits:
    """The limits of this person. `overlay`: what was given to her while the gateway ran, and the role of her last
    sign-in."""
    if (named := people.get(folded_name(name))) is not None:
        return named
    of_role = people.get(f"{ROLE_PREFIX}{overlay.role}") if overlay is not None else None
    shared = of_role or people.get(PERSON_DEFAULTS, UNLIMITED)
    if overlay is None or overlay.quotas is None:
        return shared
    return shared.model_copy(update={"quotas": overlay.quotas})
