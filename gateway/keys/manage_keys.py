"""Keys: made, changed, given another secret, revoked."""

from __future__ import annotations

import asyncio
import secrets
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from gateway.api import auth
from gateway.chunked import in_chunks, portions
from gateway.config import Config, ConfigError, KeySettings, read_key, shown_key, with_key_defaults
from gateway.config.probable_mistakes import warnings_of_key
from gateway.config.quantities import QUOTA_EXAMPLES, is_duration
from gateway.errors import Conflict, InvalidRequest
from gateway.quota.issued import (
    IssuedKey,
    Pause,
    SecretOf,
    format_secret,
    is_person_id,
    person_limits,
    show_file_key,
    show_key,
    show_top_ups,
)
from gateway.quota.notation import merged_quotas, read_moment, read_quota
from gateway.quota.scopes import person_scope
from gateway.quota.windows import LimitTable
from gateway.records import Key

from .documents import (
    AuditEvent,
    Documents,
    IsMeant,
    Page,
    Shown,
    decoded,
    every_one,
    exists,
    in_file,
    invalid,
    labels_of,
)
from .key_index import PAGE, READ_AT_ONCE, KeyGroup

MAX_OVERLAP_S = 30 * 86400
"""A secret that is to be replaced should not live on for ever."""

WITHOUT_QUOTA = (
    "This key has no quota, neither of its own nor of its team nor of the whole gateway: it may spend without limit. "
    "Give it one, or set defaults.keys.quotas."
)


ChecksChange = Callable[[KeySettings, KeySettings], None]
"""Is given the settings before and after a change, and raises if it is not allowed."""


def permits_any(before: KeySettings, after: KeySettings) -> None:
    """The `ChecksChange` of an operator: every change is allowed."""


class CreatedKey(NamedTuple):
    """A key as it is shown, and its new secret: the only time that it is shown."""

    key: Shown
    secret: str
    warnings: tuple[str, ...] = ()
    """Possible mistakes in the settings."""


class KeyManager(Documents):
    """Creates, changes, rotates, pauses and revokes keys."""

    async def create_key(
        self, body: Mapping[str, Any], actor: str, check: ChecksChange = permits_any, *, sees_all: bool = True
    ) -> CreatedKey:
        """Make a key from settings as in the file, without a secret: one is made. Settings that are not given come
        from `defaults.keys`; `quota_changes` has texts by unit for quotas beside those. `check` compares the key with
        one that has an id only."""
        now = self._clock()
        settings = await self._read_settings(_with_quota_changes(body, self._config(), now))
        check(KeySettings(id=settings.id), settings)
        if self._file_key(settings.id) is not None:
            raise exists("key", settings.id)
        if is_person_id(settings.id):
            raise InvalidRequest("Ids of this form belong to persons who call with tokens. Choose another.", param="id")
        await self._check_unused(settings)
        warnings = await self._warnings(settings, sees_all=sees_all)
        if sees_all:  # they name models and teams
            warnings += await self._mistakes(settings)
        secret = _new_secret(settings.id)
        made = IssuedKey(settings, (SecretOf(auth.digest(secret).hex(), now),), created_at=now, updated_at=now)
        doing = AuditEvent(actor, "create", after=shown_key(settings))
        await self._write("key", settings.id, None, made.encode(), doing, added=[auth.digest(secret).hex()])
        # No step after this one may fail: the secret is shown only in this answer.
        return CreatedKey(show_key(made, now) | {"top_ups": []}, secret, warnings)

    async def list_keys(
        self,
        after: str = "",
        limit: int = 100,
        team: str | None = None,
        is_meant: IsMeant = every_one,
        groups: Collection[KeyGroup] | None = None,
    ) -> Page:
        """Keys of file and store by id, behind the id `after`: those of the team, and of those the ones that are
        meant. `groups`: all that are meant are in these, so that others are not read."""

        def is_wanted(key: KeySettings) -> bool:
            return team in (None, key.team) and is_meant(key)

        of_file = {key.id: key for key in self._config().keys}
        names = sorted(name for name, key in of_file.items() if name > after and is_wanted(key))[: limit + 1]
        overlays, now = await self._overlays([f"key:{name}" for name in names]), self._clock()
        issued: list[IssuedKey] = []
        async for key in self._issued_keys(after, groups):
            if key.settings.id not in of_file and is_wanted(key.settings):
                issued.append(key)
                if len(issued) > limit:
                    break

        def show() -> list[Shown]:
            file_keys = in_chunks(zip(names, overlays, strict=True), READ_AT_ONCE)
            return [
                *(show_file_key(of_file[name], overlay, now) for name, overlay in file_keys),
                *(show_key(key, now) for key in in_chunks(issued, READ_AT_ONCE)),
            ]

        rows = await asyncio.to_thread(show)
        return Page.of(sorted(rows, key=lambda row: str(row["id"])), limit, "id")

    async def show_key(self, name: str) -> Shown:
        """One key: its settings, `managed_by` (`file` or `store`), `status` (`active`, `expired`, `revoked`, `paused`),
        `created_at`, `updated_at`, `revoked_at`, `secrets` (when made, until when good; never what they are) and
        `top_ups`."""
        _, overlay = await self._overlay(f"key:{name}")
        now = self._clock()
        if (of_file := self._file_key(name)) is not None:
            shown = show_file_key(of_file, overlay, now)
        else:
            shown = show_key((await self._issued_key(name))[1], now)
        return shown | {"top_ups": show_top_ups(overlay)}

    async def update_key(
        self,
        name: str,
        changes: Mapping[str, Any],
        actor: str,
        check: ChecksChange = permits_any,
        *,
        sees_all: bool = True,
    ) -> Shown:
        """Replace the settings that are named; null takes one back to its default. The id stays."""
        text, key = await self._changeable(name)
        if changes.get("id", name) != name:
            raise InvalidRequest("The id of a key stays for ever. Create another key.", param="id")
        before = shown_key(key.settings)
        settings = await self._read_settings(
            {field: value for field, value in {**before, **changes}.items() if value is not None}
        )
        check(key.settings, settings)
        changed = key.with_settings(settings, self._clock())
        await self._write("key", name, text, changed.encode(), AuditEvent(actor, "update", before, shown_key(settings)))
        for warning in await self._mistakes(settings) if sees_all else ():  # as for a new key
            self.warn(f"the key {name}: {warning}")
        return await self.show_key(name)

    async def rotate_key(self, name: str, overlap_s: float, actor: str) -> CreatedKey:
        """Give a key a new secret; the old one is good for `overlap_s` seconds more."""
        if not 0 <= overlap_s <= MAX_OVERLAP_S:
            raise InvalidRequest(f"Expected a number of seconds from 0 to {MAX_OVERLAP_S}.", param="overlap_s")
        if is_person_id(name):
            raise Conflict(
                f"'{name}' is the record of a person, who calls with tokens. It has no secret.",
                code="no_secret",
            )
        text, key = await self._changeable(name)
        _, overlay = await self._overlay(f"key:{name}")
        now, secret = self._clock(), _new_secret(name)
        rotated = key.rotated(auth.digest(secret).hex(), now, overlap_s)
        had, has = [{secret.sha256 for secret in each.secrets} for each in (key, rotated)]
        doing = AuditEvent(actor, "rotate", after={"overlap_s": overlap_s})
        await self._write("key", name, text, rotated.encode(), doing, added=[*has - had], removed=[*had - has])
        return CreatedKey(show_key(rotated, now) | {"top_ups": show_top_ups(overlay)}, secret)

    async def revoke_key(self, name: str, actor: str) -> Shown:
        """Refuse a key from now on, for ever; a key of the file too. To revoke it again changes nothing."""
        now, doing = self._clock(), AuditEvent(actor, "revoke")
        if self._file_key(name) is not None:
            text, overlay = await self._overlay(f"key:{name}")
            if overlay.revoked_at is None:
                await self._write("overlay", f"key:{name}", text, overlay._replace(revoked_at=now).encode(), doing)
        else:
            issued, key = await self._issued_key(name)
            if key.revoked_at is None:
                await self._write("key", name, issued, key.revoked(now).encode(), doing)
        return await self.show_key(name)

    async def pause_key(self, name: str, role: str, takes_over: Callable[[str], bool], actor: str) -> Shown:
        """Refuse a key until it is resumed; a key of the file too. To pause it again changes nothing, unless this role
        `takes_over` from the one that paused it."""
        pause = Pause(self._clock(), role)
        return await self._set_pause(name, pause, lambda found: takes_over(found.by), AuditEvent(actor, "pause"))

    async def resume_key(self, name: str, check: Callable[[str], None], actor: str) -> Shown:
        """Let a paused key call again. `check` is given the role that paused it, and raises if that is not allowed."""

        def is_to_change(found: Pause) -> bool:
            check(found.by)
            return True

        return await self._set_pause(name, None, is_to_change, AuditEvent(actor, "resume"))

    async def _set_pause(
        self, name: str, pause: Pause | None, is_to_change: Callable[[Pause], bool], doing: AuditEvent
    ) -> Shown:
        if self._file_key(name) is not None:
            text, overlay = await self._overlay(f"key:{name}")
            found: Pause | None = overlay.paused
            kind, document, changed = "overlay", f"key:{name}", overlay._replace(paused=pause).encode()
        else:
            text, key = await self._changeable(name)
            found = key.paused
            kind, document, changed = "key", name, key.with_pause(pause, self._clock()).encode()
        if is_to_change(found) if found is not None else pause is not None:
            await self._write(kind, document, text, changed, doing)
        return await self.show_key(name)

    async def delete_key(self, name: str, actor: str) -> None:
        """Take away a key that was never used, so that its id is free. Raises `Conflict` `key_was_used`."""
        if self._file_key(name) is not None:
            raise in_file("key", name)
        text, key = await self._issued_key(name)
        if await self._is_used(key.settings):
            raise Conflict(
                f"The key '{name}' was used: usage, refusals or files are kept under its id. Revoke it instead.",
                code="key_was_used",
            )
        overlay, _ = await self._overlay(f"key:{name}")
        doing = AuditEvent(actor, "delete", before=shown_key(key.settings))
        if overlay is not None:  # top-ups, which a later key of this id would inherit
            await self._write("overlay", f"key:{name}", overlay, None, doing)
        removed = [secret.sha256 for secret in key.secrets]
        await self._write("key", name, text, None, doing, removed=removed)

    async def key_facts(self, name: str) -> KeySettings | None:
        """The settings of a key of file or store; None: there is none."""
        found: KeySettings | None = self._file_key(name)
        if found is None and (text := (await self._store.read("key", [name]))[0]) is not None:
            found = IssuedKey.decode(text).settings
        return found

    async def labels_of(self, names: Iterable[str], is_meant: IsMeant = every_one) -> dict[str, Mapping[str, str]]:
        """The labels of those of these keys that are meant, as they are now. Raises `StoreUnavailable`."""
        return await labels_of(self._store, self._config().keys, names, is_meant)

    async def every_key(
        self,
        only: str | None = None,
        after: str = "",
        is_meant: IsMeant = every_one,
        groups: Collection[KeyGroup] | None = None,
    ) -> AsyncIterator[list[Key]]:
        """All keys of file and store behind the id `after` that are meant, by id, some at a time; or one alone, where
        there is one. `groups`: as of `list_keys`."""
        if only is not None:
            found = await self.key_facts(only)
            yield [auth.read(found)] if found is not None and is_meant(found) else []
            return
        of_file = [key for key in self._config().keys if is_meant(key)]
        ids = {key.id for key in self._config().keys}
        waiting: list[KeySettings] = sorted((key for key in of_file if key.id > after), key=lambda key: key.id)
        async for page in self._key_pages(after, groups):
            until = bisect_right(waiting, page[-1][0], key=lambda key: key.id)
            some, waiting = waiting[:until], waiting[until:]
            issued = await asyncio.to_thread(decoded, page)
            some += [key.settings for key in issued if key.settings.id not in ids and is_meant(key.settings)]
            for portion in portions(sorted(some, key=lambda key: key.id), READ_AT_ONCE):
                yield [auth.read(key) for key in portion]
        for portion in portions(waiting, READ_AT_ONCE):
            yield [auth.read(key) for key in portion]

    async def _check_unused(self, settings: KeySettings) -> None:
        """Raises `Conflict` for the id of a key that is gone and was used: a key of the file that was removed. A new
        key of this id would read what the former one has left."""
        if (await self._store.read("key", [settings.id]))[0] is not None:
            raise exists("key", settings.id)
        overlay, _ = await self._overlay(f"key:{settings.id}")
        if overlay is not None or await self._is_used(settings):
            raise Conflict(
                f"There was a key '{settings.id}' before, and its usage, refusals or files are kept under this id. "
                "Choose another.",
                param="id",
                code="id_was_used",
            )

    async def _is_used(self, settings: KeySettings) -> bool:
        """Whether the store has anything under the id of this key besides its document."""
        now = self._clock()
        windows = [term.window(now) for term in LimitTable((), {}, {}).of(auth.read(settings))]
        statuses = await self._store.window_statuses(windows, now)
        return any(each.used or each.reserved for each in statuses) or await self._store.is_used(settings.id)

    async def _warnings(self, settings: KeySettings, *, sees_all: bool) -> tuple[str, ...]:
        """Points out a key that no quota limits, if others have one; always to a caller that does not see all keys."""
        config, teams = self._config(), await self.teams()
        team = teams.get(settings.team or "")
        if settings.quotas or config.quotas or (team is not None and team.quotas):
            return ()
        if (owner := settings.owner) is not None:
            _, overlay = await self._overlay(person_scope(owner))
            if (team is not None and team.member_quotas) or person_limits(config.people, owner, overlay).quotas:
                return ()
        if not sees_all or any(key.quotas for key in config.keys) or any(other.quotas for other in teams.values()):
            return (WITHOUT_QUOTA,)
        issued = await asyncio.to_thread(decoded, await self._store.page("key", "", PAGE))
        return (WITHOUT_QUOTA,) if any(other.settings.quotas for other in issued) else ()

    async def _mistakes(self, settings: KeySettings) -> tuple[str, ...]:
        """Probable mistakes, as in the file. A thread looks for them: patterns may be many, as the models may be."""
        now = datetime.fromtimestamp(self._clock(), UTC)
        return await asyncio.to_thread(warnings_of_key, self._config(), settings, now)

    async def _changeable(self, name: str) -> tuple[str, IssuedKey]:
        """A key that may be changed here, and its document."""
        if self._file_key(name) is not None:
            raise in_file("key", name)
        text, key = await self._issued_key(name)
        if key.revoked_at is not None:
            raise Conflict(f"The key '{name}' was revoked, which is for ever. Create another.", code="revoked")
        return text, key

    async def _read_settings(self, body: Mapping[str, Any]) -> KeySettings:
        teams = await self.teams() if body.get("team") is not None else {}
        if isinstance(expires := body.get("expires"), str) and is_duration(expires):
            try:
                body = {**body, "expires": read_moment(expires, datetime.fromtimestamp(self._clock(), UTC))}
            except ValueError as error:  # it is further away than the calendar goes
                raise InvalidRequest(f"Invalid 'expires': {error}.", param="expires") from None
        try:
            return read_key(body, self._config(), teams)
        except ConfigError as error:
            raise invalid(error) from None


def _with_quota_changes(body: Mapping[str, Any], config: Config, now: float) -> dict[str, Any]:
    """A new key with the defaults, whose quotas `quota_changes` changes. Raises `InvalidRequest`."""
    given = dict(body)
    changes = given.pop("quota_changes", {})
    if changes and "quotas" in given:
        raise InvalidRequest("Name 'quotas' or 'quota_changes', not both.", param="quota_changes")
    if unknown := sorted(changes.keys() - QUOTA_EXAMPLES.keys()):
        raise InvalidRequest(f"{unknown[0]!r}: quotas are in {', '.join(QUOTA_EXAMPLES)}.", param="quota_changes")
    settings = with_key_defaults(given, config, now)
    try:
        named = [read_quota(unit, text) for unit, texts in changes.items() for text in texts]
        return {**settings, "quotas": merged_quotas(settings["quotas"], named)} if named else settings
    except ValueError as error:
        raise InvalidRequest(str(error), param="quota_changes") from None


def _new_secret(name: str) -> str:
    return format_secret(name, secrets.token_urlsafe(32))
