"""The key cache of one worker: all keys of the file, and those keys of the store that were used.

1. A key is read from the store once and cached. Once a second the worker reads the list of changes from the store; a
   changed key is read again at its next use. So a revoked key is refused by all workers within `FRESH_S`, and a hundred
   thousand keys cost no more per call than ten.
2. Without a list of changes for that long, cached keys are not trusted: with `on_outage: deny`, calls are refused until
   the store answers; with `allow`, cached keys are accepted for `outage_max_s`, and an unknown key is not a 401.
3. Unknown secrets are looked up in batches, at a bounded rate for each address, and cached as unknown. Only texts in
   the form of an issued secret are looked up.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from gateway.api import auth
from gateway.api.auth import KnownSecret
from gateway.config import Config, Team
from gateway.errors import Unavailable
from gateway.quota.issued import IssuedKey, IssuedTeam, Overlay, format_time, may_be_issued
from gateway.quota.labels import NOT_SEEN, with_value
from gateway.quota.scopes import folded_scope, member_of, person_scope
from gateway.quota.windows import Limit, LimitTable, calendar_window
from gateway.records import Call, Key
from gateway.store import ChangeFeed, DocumentKind, KeyStore, StoreChange, StoreUnavailable
from gateway.tasks import Tasks
from gateway.wings import parts

from .token_bucket import TokenBucket, TokenBuckets

T = TypeVar("T")

log = logging.getLogger("gateway")

CHANGES_EVERY_S = 1.0
CHANGES_WHILE_AWAY_S = 0.3
CHANGES_WITHIN_S = 1.0
FIRST_WITHIN_S = 10.0
"""How long a look may take: the first one reads every team and overlay."""

NOTED_WITHIN_S = 5.0
"""How long a call waits until its tags are noted, and how long none waits after the store has failed at it."""

RESTORE_WITHIN_S = 30.0
"""How long one look may make lost changes again; the next look continues."""

FRESH_S = 4.0
"""How long cached keys are trusted without a list of changes. With the time of a look-up, a revoked key is refused
within 5 s."""

REMEMBERED = 20_000
"""Largest number of cached keys of the store, two kilobytes each; the one read first is evicted."""

UNKNOWN_REMEMBERED = 10_000
"""Largest number of cached unknown secrets."""

UNKNOWN_PER_S, UNKNOWN_AT_ONCE = 50, 500
"""Look-ups of unknown secrets per second for one address. Look-ups that find a key do not count."""

UNKNOWN_OF_ALL = 20
"""Times that for all addresses, so that no single one can use it up."""

LOOKED_UP_AT_ONCE = 500

ASKED_AGAIN = 5
"""How often a look-up is repeated after a change meanwhile; then its answer is used and not cached."""

PAGE = 1000


class WingMember(NamedTuple):
    """A member of the overlays of keys, teams and people that calls need. `read` gets None where it is not there."""

    name: str
    read: Callable[[Any], Any]


class KeyCache:
    """One worker's keys and the limits that bind them; `begin` it. Private to the worker."""

    def __init__(
        self,
        store: KeyStore,
        config: Config,
        clock: Callable[[], float] = time.monotonic,
        restore: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`restore` makes changes again that the store has lost (`Decisions.restore`): before each look for changes."""
        self._store = store
        self._restore = restore
        self._clock = clock
        self.known: dict[bytes, KnownSecret] = {}
        """All keys of the file and the cached keys of the store, by the SHA-256 of their secrets."""
        self.fresh_until = 0.0
        """Time on `clock` until which the cached keys are trusted."""
        self.terms = LimitTable((), {}, {})
        self._file_ids: dict[str, bytes] = {}
        """The keys of the file: the SHA-256 of their secrets by their ids."""
        self._remembered: dict[bytes, str] = {}
        """Ids of the known keys that were looked up in the store, by the SHA-256 of their secrets, the oldest look-up
        first."""
        self._unknown: dict[bytes, None] = {}
        self._teams: dict[str, Team] = {}
        """Teams of the store, without those of the file."""
        self._overlays: dict[str, Overlay] = {}
        self._members = parts(WingMember, "overlay")
        self._position: str | None = None
        self._changes = 0
        """How often something was changed, as far as we have heard."""
        self._waiting: dict[bytes, tuple[asyncio.Future[KnownSecret | None], str | None]] = {}
        """Secrets that the store is asked for, and the places of those that may be guesses."""
        self._of_address = TokenBuckets(UNKNOWN_PER_S, UNKNOWN_AT_ONCE)
        self._of_all = TokenBucket(UNKNOWN_PER_S * UNKNOWN_OF_ALL, UNKNOWN_AT_ONCE * UNKNOWN_OF_ALL)
        self._noting, self._notes_again_at = asyncio.Lock(), 0.0
        self._tasks = Tasks()
        self.configure(config)

    def __repr__(self) -> str:
        fresh_s = self.fresh_until - self._clock()
        return f"<KeyCache {len(self.known)} keys, fresh for {fresh_s:.1f} s, {len(self._waiting)} looked up>"

    def configure(self, config: Config, index: Mapping[bytes, Key] | None = None) -> None:
        """Go by this configuration from now on. `index`: that of its keys, where it was made before."""
        self._config = config
        index = auth.index(config.keys) if index is None else index
        self._file_ids = {key.id: digest for digest, key in index.items()}
        looked_up = {
            digest: self.known[digest] for digest, name in self._remembered.items() if name not in self._file_ids
        }
        self._remembered = {digest: known.key.id for digest, known in looked_up.items()}
        self.known = looked_up | {digest: KnownSecret(key) for digest, key in index.items()}
        self._apply()

    def known_keys(self) -> list[Key]:
        """The cached keys: all of the file, and recent callers of the store."""
        return list({known.key.id: known.key for known in self.known.values()}.values())

    async def named(self, names: frozenset[str]) -> list[Key]:
        """The keys of these ids, of file and store, whether calls have used them here or not. Raises
        `StoreUnavailable`."""
        found = {known.key.id: known.key for known in self.known.values() if known.key.id in names}
        missing = [name for name in names if name not in found]
        texts = await self._store.read("key", missing) if missing else []
        documents = [read for text in texts if text is not None and (read := _read_key(text)) is not None]
        return [*found.values(), *[auth.read(issued.settings) for issued in documents]]

    @property
    def teams(self) -> Mapping[str, Team]:
        """All teams by name; of equal names, the team of the file."""
        return self.terms.teams

    async def know(self, call: Call) -> None:
        """Note the values of the call's tags that have quotas and are new in this month, so that each has windows of
        its own, at all workers and gateways. While the store is away they share those of all others."""
        month = calendar_window("month", call.started)[0]
        if not self.terms.labels.owners or not self.terms.labels.unknown(call, month):
            return
        try:
            async with asyncio.timeout(NOTED_WITHIN_S), self._noting:
                for tag, value in self.terms.labels.unknown(call, month):
                    if self._clock() >= self._notes_again_at:  # else the store failed while this waited, or before
                        await self._note(tag, value, call, month)
        except (StoreUnavailable, TimeoutError, ValueError):  # or a newer gateway wrote what this one cannot read
            self._notes_again_at = self._clock() + NOTED_WITHIN_S

    async def _note(self, tag: str, value: str, call: Call, month: str) -> None:
        while True:
            (text,) = await self._store.read("overlay", [tag])
            overlay = Overlay() if text is None else Overlay.decode(text)  # all of it, for it is written back
            if (seen := with_value(overlay.seen or NOT_SEEN, value, call.key.id, month)) is None:
                break
            overlay, actor = overlay._replace(seen=seen), f"a tag of the key {call.key.id}"
            event = {"actor": actor, "action": "note", "before": None, "after": value}
            audit = json.dumps({"time": format_time(call.started), **event})
            if await self._store.change(StoreChange("overlay", tag, text, overlay.encode(), audit)):
                break
        self._overlays[tag] = overlay
        self._apply()

    def budgets(self, scope: str) -> Sequence[Limit]:
        """The quotas of the upstream of this scope, with top-ups."""
        return self.terms.of_scope(scope)

    def trust(self) -> None:
        """Raises `Unavailable` if cached keys may be out of date."""
        if self._clock() > self.fresh_until:
            raise _away()

    async def look_up(self, secret: str, remote: str | None = None) -> KnownSecret | None:
        """The store's key for a secret that is not in the cache, for a client at this address; None: there is none.
        Raises `Unavailable`."""
        if not may_be_issued(secret):
            return None
        return await self.look_up_digest(auth.digest(secret), auth.place_of(remote))

    async def look_up_digest(self, digest: bytes, place: str | None = None) -> KnownSecret | None:
        """The same for a digest of the index of secrets, from this place; None: it cannot have been guessed."""
        if digest in self._unknown:
            return None
        if (asked := self._waiting.get(digest)) is None:
            buckets = [] if place is None else [self._of_address.of(place), self._of_all]
            if any(each.is_spent(self._clock()) for each in buckets):
                raise Unavailable(
                    "The gateway is asked for too many unknown keys. Please try again.", code="too_many_unknown_keys"
                )
            asked = self._waiting[digest] = asyncio.get_running_loop().create_future(), place
            if len(self._waiting) == 1:
                self._tasks.spawn(self._look_up(), "look up keys")
        try:
            return await asyncio.shield(asked[0])
        except StoreUnavailable:
            raise _away() from None

    async def begin(self) -> None:
        """Ask the store a first time, be it there or not, and follow the changes from then on."""
        await self.hear()
        self._tasks.keep(self._follow, "follow-keys")

    async def _follow(self) -> None:
        while True:
            is_away = not await self.hear()
            await asyncio.sleep(CHANGES_WHILE_AWAY_S if is_away else CHANGES_EVERY_S)

    async def hear(self) -> bool:
        """Ask for changes once, and act on it; whether there was an answer."""
        asked_at = self._clock()
        try:
            if self._restore is not None:
                async with asyncio.timeout(RESTORE_WITHIN_S):
                    await self._restore()
            async with asyncio.timeout(CHANGES_WITHIN_S if self._position else FIRST_WITHIN_S):
                await self._take_in(await self._store.changes_since(self._position))
        except (StoreUnavailable, TimeoutError):
            return False
        except Exception:
            log.exception("the changes of keys could not be read")
            return False
        store = self._config.store
        self.fresh_until = asked_at + (store.outage_max_s if store.on_outage == "allow" else FRESH_S)
        return True

    async def close(self) -> None:
        await self._tasks.cancel_all()

    # ---------------------------------------------------------------------------------------------------------- changes

    async def _take_in(self, feed: ChangeFeed) -> None:
        if self._position is None or not feed.is_complete:
            self._changes += 1
            every = await self._every("team"), await self._every("overlay")
            self._teams, self._overlays = {}, {}  # after the last wait: calls apply what is here meanwhile (`know`)
            _put(self._teams, every[0], _read_team)
            _put(self._overlays, every[1], self._read_overlay)
            self._forget(lambda _: True)
            self._apply()
        elif feed.changed:
            self._changes += 1
            changed: dict[DocumentKind, list[str]] = defaultdict(list)
            for kind, name in dict.fromkeys(feed.changed):
                changed[kind].append(name)
            _put(self._teams, await self._again("team", changed["team"]), _read_team)
            _put(self._overlays, await self._again("overlay", changed["overlay"]), self._read_overlay)
            names = frozenset(changed["key"])
            owners = {member_of(folded_scope(scope))[1] for scope in changed["overlay"]} - {None}
            if names or owners:
                self._forget(lambda key: key.id in names or key.owner in owners)
            if changed["team"] or changed["overlay"]:
                self._apply()
        self._position = feed.position

    def _read_overlay(self, text: str) -> Overlay:
        try:
            overlay = Overlay.decode(text)
        except ValueError:
            log.exception("an overlay cannot be read; if it is of a key, that is refused")
            return Overlay(revoked_at=0.0)
        members = self._members if overlay.more else ()
        return overlay._replace(more={name: read(overlay.more.get(name)) for name, read in members})

    async def _again(self, kind: DocumentKind, names: list[str]) -> Iterable[tuple[str, str | None]]:
        return zip(names, await self._store.read(kind, names) if names else (), strict=True)

    async def _every(self, kind: DocumentKind) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        while rows := await self._store.page(kind, found[-1][0] if found else "", PAGE):
            found += rows
        return found

    def _forget(self, is_meant: Callable[[Key], bool]) -> None:
        for digest in [digest for digest in self._remembered if is_meant(self.known[digest].key)]:
            del self._remembered[digest], self.known[digest]
        self._unknown.clear()

    def _apply(self) -> None:
        """Go by teams and overlays as they are now."""
        config, teams = self._config, {**self._teams, **self._config.teams}
        if teams.keys() != self.teams.keys():
            self._forget(lambda _: True)  # authentication depends on it
        budgets = {name: upstream.quotas for name, upstream in config.upstreams.items()}
        self.terms = LimitTable(config.quotas, teams, self._overlays, config.people, budgets)
        for name, digest in self._file_ids.items() if self._overlays else ():
            overlay, known = self._overlays.get(f"key:{name}", Overlay()), self.known[digest]
            refusal = auth.REVOKED if overlay.revoked_at is not None else auth.PAUSED if overlay.paused else None
            self.known[digest] = known._replace(refusal=refusal or self._left(known.key.owner))

    def _left(self, owner: str | None) -> str | None:
        """Why keys of this owner are refused; None: they are not."""
        overlay = self._overlays.get(person_scope(owner)) if owner is not None else None
        return auth.LEFT if overlay is not None and overlay.paused is not None else None

    # -------------------------------------------------------------------------------------------------------- look-ups

    async def _look_up(self) -> None:
        """Look up all that wait, as many at once as wait."""
        while some := list(islice(self._waiting, LOOKED_UP_AT_ONCE)):
            try:
                found = await self._find(some)
            except Exception as error:
                for digest in some:
                    _fail(self._waiting.pop(digest)[0], error)
                continue
            for digest, known in found.items():
                answer, place = self._waiting.pop(digest)
                if known is None and place is not None:
                    self._of_address.of(place).spend(1)
                    self._of_all.spend(1)
                if not answer.done():
                    answer.set_result(known)

    async def _find(self, digests: list[bytes]) -> dict[bytes, KnownSecret | None]:
        for attempt in range(ASKED_AGAIN):
            changes = self._changes
            texts = await self._store.find_keys([digest.hex() for digest in digests])
            found = {digest: self._read(digest, text) for digest, text in zip(digests, texts, strict=True)}
            if attempt == 0 and any(known is not None and known.refusal == auth.NO_TEAM for known in found.values()):
                await self.hear()  # the team may be as new as its key
                continue
            if changes == self._changes:
                self._remember(found)
                break
        return found

    def _read(self, digest: bytes, text: str | None) -> KnownSecret | None:
        if text is None or (issued := _read_key(text)) is None:
            return None
        settings, sha256 = issued.settings, digest.hex()
        secret = next((secret for secret in issued.secrets if secret.sha256 == sha256), None)
        if secret is None or settings.id in self._file_ids:  # the file's key with this id counts
            return None
        refusal = None
        if issued.revoked_at is not None:
            refusal = auth.REVOKED
        elif issued.paused is not None:
            refusal = auth.PAUSED
        elif settings.team is not None and settings.team not in self.teams:
            refusal = auth.NO_TEAM
        return KnownSecret(auth.read(settings), secret.until, refusal or self._left(settings.owner))

    def _remember(self, found: Mapping[bytes, KnownSecret | None]) -> None:
        for digest, known in found.items():
            if known is None:
                self._unknown[digest] = None
                continue
            self.known[digest] = known
            self._remembered[digest] = known.key.id
        for digest in list(islice(self._remembered, max(0, len(self._remembered) - REMEMBERED))):
            del self._remembered[digest], self.known[digest]
        for digest in list(islice(self._unknown, max(0, len(self._unknown) - UNKNOWN_REMEMBERED))):
            del self._unknown[digest]


def _away() -> Unavailable:
    return Unavailable("The gateway cannot reach its store of keys right now.", code=StoreUnavailable.code)


def _put(
    place: MutableMapping[str, T], documents: Iterable[tuple[str, str | None]], read: Callable[[str], T | None]
) -> None:
    for name, text in [(folded_scope(name), text) for name, text in documents]:
        if text is None or (value := read(text)) is None:
            place.pop(name, None)
        else:
            place[name] = value


def _read_key(text: str) -> IssuedKey | None:
    try:
        return IssuedKey.decode(text)
    except ValueError:
        log.exception("a key in the store cannot be read; it is refused")
        return None


def _read_team(text: str) -> Team | None:
    try:
        return IssuedTeam.decode(text).settings
    except ValueError:
        log.exception("a team cannot be read; its keys are refused")
        return None


def _fail(answer: asyncio.Future[KnownSecret | None], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # the requester may have left
