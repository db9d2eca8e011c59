"""The models that upstreams list: read by the supervisor at its start and every so often, once for all workers.

The last result is kept in a file in the journal folder, so that a gateway that starts while an upstream is down serves
the models of before. A list that cannot be read, or is empty, changes nothing. Time, size and names are bounded.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.config import Config, ConfigError, Upstream, build
from gateway.config.discovered import discovering, usable, with_discovered, with_prices
from gateway.config.faults import few
from gateway.config.source import Reading

if TYPE_CHECKING:
    from gateway.upstream.ask import Listing

FILE = "discovered-models.json"
MAX_FILE_BYTES = 64 * 2**20
ASK_WITHIN_S = 10.0
START_WITHIN_S = 15.0
"""How long a start waits for upstreams of which no list is known."""
LOOK_EVERY_S = 1.0
TRY_AGAIN_S = 30.0
"""Seconds to the next request after a list that could not be read, unless the list is read more often anyway."""
REFUSED_KEY = frozenset({401, 402, 403, 429})
SHOWN = 5
"""Names in one line of the log."""

log = logging.getLogger("gateway")


class KnownList(NamedTuple):
    """The models that an upstream listed when it was last asked."""

    base_url: str
    names: tuple[str, ...]


class ModelDiscovery:
    """The lists of all upstreams. `folder` is the journal folder. Used from one event loop."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = folder / FILE
        self._clock = clock
        self._known = _read(self._path)
        self._due: dict[tuple[str, str], float] = {}
        """When each upstream is to be asked again, by its name and address."""

    def extend(self, reading: Reading) -> Reading:
        """A configuration with the models that its upstreams list. May run in a thread."""
        config, known = reading.config, self._known
        found = {
            name: known[name].names
            for name, _ in discovering(config)
            if name in known and known[name].base_url == config.upstreams[name].base_url
        }
        if not found:
            return reading
        values = with_discovered(reading.values, config, found)
        try:
            values = with_prices(values, reading.values, datetime.now(UTC))
            return reading._replace(values=values, config=build(values))
        except ConfigError as error:
            log.error("the models that upstreams list cannot be served: %s", error.faults[0])
            return reading

    async def start(self, config: Config) -> None:
        """Ask the upstreams of which no list is known, and wait for them for a while."""
        unknown = [name for name, _ in discovering(config) if not self._is_known(name, config.upstreams[name])]
        if unknown:
            await self._ask(config, unknown, START_WITHIN_S)

    async def watch(self, config: Callable[[], Config], changed: Callable[[], Awaitable[None]]) -> None:
        """Ask each upstream when it is due, until cancelled; `changed` is called when a list has changed."""
        while True:
            present = config()
            due = [name for name, _ in discovering(present) if self._is_due(name, present.upstreams[name])]
            if due and await self._ask(present, due, ASK_WITHIN_S):
                await changed()
            await asyncio.sleep(LOOK_EVERY_S)

    def learn(self, name: str, base_url: str, names: Iterable[str]) -> None:
        """Keep a list that was read elsewhere. Raises `OSError`."""
        self._known = {**self._known, name: KnownList(base_url, usable(names))}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        _write(self._path, self._known)

    def _is_known(self, name: str, upstream: Upstream) -> bool:
        return name in self._known and self._known[name].base_url == upstream.base_url

    def _is_due(self, name: str, upstream: Upstream) -> bool:
        return self._clock() >= self._due.get((name, upstream.base_url), 0.0)

    async def _ask(self, config: Config, names: Iterable[str], within_s: float) -> bool:
        """Ask these upstreams at the same time. Returns whether a list has changed."""
        upstreams = {name: config.upstreams[name] for name in names}
        answers = await asyncio.gather(*[self._ask_one(name, each, within_s) for name, each in upstreams.items()])
        if not any(answers):
            return False
        try:
            await asyncio.to_thread(_write, self._path, self._known)
        except OSError as error:
            log.warning("the list of models cannot be kept in %s: %s", self._path, (error.strerror or "").lower())
        return True

    async def _ask_one(self, name: str, upstream: Upstream, within_s: float) -> bool:
        assert upstream.discover is not None
        reply, listed = await _list(upstream, within_s)
        names = usable(listed or ()) if reply.status == 200 else ()  # a list that ends early looks like models gone
        every_s, now = upstream.discover.every_s, self._clock()
        self._due[name, upstream.base_url] = now + (every_s if names else min(every_s, TRY_AGAIN_S))
        before = self._known[name].names if self._is_known(name, upstream) else None
        if not names:
            outcome = reply.describe("GET /models") if reply.status != 200 else "GET /models answered no list of models"
            kept = "nothing is known of its models" if before is None else f"its {len(before)} known models stay"
            log.warning("upstream %s: %s; %s", name, outcome, kept)
            return False
        if names == before:
            return False
        self._known = {**self._known, name: KnownList(upstream.base_url, names)}
        if before is None:
            log.warning("upstream %s lists %d models", name, len(names))
        else:
            came, went = sorted({*names} - {*before}), sorted({*before} - {*names})
            log.warning(
                "upstream %s lists other models: %s", name, "; ".join(_counted(came, "new") + _counted(went, "gone"))
            )
        return True


async def _list(upstream: Upstream, within_s: float) -> Listing:
    """The models that the upstream lists for the first API key that is not refused."""
    from gateway.upstream.ask import Listing, Reply, list_models  # a start without discovered models is sooner

    listing = Listing(Reply(None), None)
    until = time.monotonic() + within_s
    for key in range(len(upstream.credentials)):
        listing = await list_models(upstream, max(0.0, until - time.monotonic()), key=key)
        if listing.reply.status not in REFUSED_KEY:
            break
    return listing


def _counted(names: list[str], what: str) -> list[str]:
    return [f"{len(names)} {what} ({few(names, SHOWN)})"] if names else []


def _read(path: Path) -> Mapping[str, KnownList]:
    """The lists of before; none where the file is missing, too long or broken."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ValueError("too long")
        rows: Any = json.loads(data)["upstreams"]
        return {str(name): KnownList(str(row["base_url"]), usable(row["names"])) for name, row in rows.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        log.warning("the list of models in %s cannot be used (%s); upstreams are asked", path, type(error).__name__)
        return {}


def _write(path: Path, known: Mapping[str, KnownList]) -> None:
    """Replace the file as a whole. Raises OSError."""
    rows = {name: {"base_url": each.base_url, "names": each.names} for name, each in known.items()}
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"upstreams": rows}))
    new.replace(path)
