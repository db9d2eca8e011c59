"""The services that carry calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.accounting.bonds import Bonds
from gateway.accounting.call_log import Accounting
from gateway.api.prompt_tokens import FindsCounter, no_counter
from gateway.config import Config
from gateway.keys.cache import KeyCache
from gateway.queueing import WaitingRoom
from gateway.store import Clock, ReportReader
from gateway.tasks import Tasks
from gateway.upstream.pool import Pool
from gateway.upstream.router import Router

from .plan import Plans


@dataclass(frozen=True, slots=True)
class Services:
    """The objects that serve calls. A call keeps the configuration it began with."""

    config: Config
    key_cache: KeyCache
    """Keys, and the limits that bind them; always the newest."""
    accounting: Accounting
    pools: Mapping[str, Pool]
    router: Router
    waiting: WaitingRoom
    """Calls for which no upstream has room; outlives the configuration."""
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
    find_counter: FindsCounter = no_counter
    """Counts text for models with a known tokenizer."""


@dataclass(slots=True)
class CurrentServices:
    """The services of a worker at present. A reload replaces `parts`; calls that have begun keep the old ones."""

    parts: Services
