"""The services that carry calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from gateway.accounting.bonds import Bonds
from gateway.accounting.call_log import Accounting
from gateway.accounting.reservation import Reservation, WaitsForRoom
from gateway.api.prompt_tokens import FindsCounter, no_counter
from gateway.config import Config
from gateway.keys.cache import KeyCache
from gateway.observe.metrics import Telemetry
from gateway.observe.tracing import Trace
from gateway.records import Amended, Call
from gateway.relay.attempt import MakesAnswers
from gateway.store import Clock, ReportReader
from gateway.tasks import Tasks
from gateway.upstream.limits import Place
from gateway.upstream.pool import Pool
from gateway.upstream.router import Router
from gateway.wings import parts

from .plan import Plans

Exchange = Callable[[str, str, str, float], Awaitable[Mapping[str, str]]]
"""Type of `Ledger.exchange`: place, holder, text, seconds."""


class NoQueue:
    """Refuses calls without room at once. A wing overrides this to let them wait."""

    def configure(self, config: Config) -> None:
        """Applies another configuration; calls that wait keep their deadline."""

    def may_wait(self, call: Call) -> bool:
        """Whether a call like this one may wait, as far as its settings show."""
        return False

    def longest_wait_s(self, call: Call) -> float:
        """How long the call may wait."""
        return 0.0

    def usual_wait_s(self) -> float:
        """How long calls may wait where neither their key nor their model has a limit."""
        return 0.0

    def longest_of_models_s(self, config: Config) -> float:
        """How long calls of a key without a limit may wait for the model for which they wait longest."""
        return 0.0

    def ticket(
        self, call: Call, places: Sequence[Place], router: Router, waited_s: float = 0.0, *, is_new: bool = False
    ) -> WaitsForRoom | None:
        """How the call waits where none of these places has room; None: it does not."""
        return None

    def waiting(self) -> Mapping[str, int]:
        """How many calls wait for each upstream; one that may go to several counts at each."""
        return {}

    async def close(self) -> None:
        """Ends the exchange with other workers."""


class WingQueue(NamedTuple):
    """The queue of a wing."""

    open: Callable[[Config, Exchange, Telemetry], NoQueue]


def open_queue(config: Config, exchange: Exchange, telemetry: Telemetry) -> NoQueue:
    """The queue of one worker: that of the first wing which has one."""
    return next((each.open(config, exchange, telemetry) for each in parts(WingQueue, "layers")), NoQueue())


class Amendment:
    """Changes or refuses calls before their limits are checked. A wing makes it, for calls by one configuration."""

    async def amend(self, call: Call, parts: Services, trace: Trace) -> Amended | None:
        """Changes a call, whose limits are not checked yet; None: it stays as it is. Raises `GatewayError` to refuse
        it. Calls of passthrough rows and Realtime sessions keep their body and their model."""

    def note(self, reservation: Reservation, parts: Services) -> None:
        """A call was reserved: the store has just had its windows like this."""

    def shown(self, model: str) -> Mapping[str, Any]:
        """Members of this model in the list of models."""
        return {}

    async def close(self) -> None:
        """Another configuration is in use, or none: only calls that have begun may still be amended."""


class WingAmendment(NamedTuple):
    make: Callable[[Config, Sequence[Amendment]], Iterable[Amendment]]
    """Makes those of a configuration, or takes those in use that can serve on."""


def amendments_of(config: Config, present: Sequence[Amendment]) -> tuple[Amendment, ...]:
    """The amendments of a configuration, in the order of the wings. `present` are those in use."""
    return tuple([made for each in parts(WingAmendment, "amending") for made in each.make(config, present)])


class WingDisclosure(NamedTuple):
    """Content of calls that a wing hands to other programs and stores."""

    of_keys: Callable[[Config], Callable[[str, str | None], dict[str, Any] | None] | None]
    """Finds what is handed on of calls of a key of a team, for the eyes of its owner; None: nothing is, of any key."""
    is_never: Callable[[Config, str], bool] = lambda config, key: False
    """Whether no wing may hand on content of calls of this key."""


@cache
def disclosures() -> tuple[WingDisclosure, ...]:
    return tuple(parts(WingDisclosure, "disclosing"))


def is_never_disclosed(config: Config, key: str) -> bool:
    """Whether a setting withholds the content of calls of this key from all programs and stores."""
    return any(each.is_never(config, key) for each in disclosures())


@dataclass(frozen=True, slots=True)
class Services:
    """The objects that serve calls. A call keeps the configuration it began with."""

    config: Config
    key_cache: KeyCache
    """Keys, and the limits that bind them; always the newest."""
    accounting: Accounting
    pools: Mapping[str, Pool]
    router: Router
    waiting: NoQueue
    """The queue of calls for which no upstream has room; outlives the configuration."""
    bonds: Bonds
    """Owners of the ids of objects that upstreams keep."""
    tasks: Tasks
    """Background work of calls: reading answers to their end after the client left, back-pressure."""
    plans: Plans
    """The parts of a call that depend only on its model and this configuration."""
    reports: ReportReader
    """Reads usage and calls, for the admin API."""
    clock: Clock
    """The store's, for all with which other gateways have to agree."""
    make: MakesAnswers
    """Makes answers that differ from their upstream's."""
    find_counter: FindsCounter = no_counter
    """Counts text for models with a known tokenizer."""
    amendments: tuple[Amendment, ...] = ()


@dataclass(slots=True)
class CurrentServices:
    """The services of a worker at present. A reload replaces `parts`; calls that have begun keep the old ones."""

    parts: Services
