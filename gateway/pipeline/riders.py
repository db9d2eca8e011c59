"""Features that go along with an attempt: kept answers, learned and adaptive limits. A plain call has none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from gateway.accounting.bonds import TASK, task_id
from gateway.api.capabilities import Adaptation
from gateway.errors import GatewayError, StreamInterrupted
from gateway.formats import FORMATS
from gateway.formats.format import PlainFacts, Scan
from gateway.records import Bond, Usage
from gateway.relay import Attempt
from gateway.relay.attempt import Rider
from gateway.relay.deferred import defer, note_deferral
from gateway.store.bonds import CONVERSATION, item_bonds
from gateway.upstream.account import account_of
from gateway.upstream.connection import Head
from gateway.upstream.health import AttemptHandle

from .active_call import ActiveCall
from .plan import Layer, Outcome


class KeptAnswer(Rider):
    """Binds the id of an answer that the upstream keeps to the caller, before the client sees it. The reservation of an
    answer that is still being made is left to `relay/deferred.py`."""

    def __init__(self, active: ActiveCall, handle: AttemptHandle) -> None:
        self._active = active
        self._handle = handle
        self._has_begun = False

    def request(self, draft: Attempt) -> Attempt:
        params, bond = draft.call.params, draft.call.bond
        if bond is not None and bond.kind == CONVERSATION and not self._active.tried:
            more = bond._replace(tokens=params.prompt_tokens - bond.tokens)  # it may stay there if the client leaves
            draft.tasks.spawn(self._active.services.bonds.keep(more), "grow-conversation")
        self._is_kept = params.is_kept and self._active.way is not Adaptation.TRANSLATED
        self._is_deferred = params.is_deferred
        if not (self._is_kept or self._is_deferred):
            return draft
        account = account_of(draft.upstream, self._handle.key) if self._is_deferred else ""
        self._attempt = draft = draft._replace(account=account, riders=(*draft.riders, self))
        return draft

    def event(self, scan: Scan) -> asyncio.Task[None] | None:
        find = self._attempt.format.kept_id
        if self._has_begun or not self._is_kept or find is None or (kept_id := find(scan)) is None:
            return None
        self._has_begun = True
        binding = self._attempt.tasks.spawn(self.bind(kept_id, None), "bind-answer")
        if self._is_deferred:
            note_deferral(self._attempt, kept_id)
        return binding

    def left(self, scan: Scan) -> GatewayError | None:
        find = self._attempt.format.pending_id
        if find is None or not self._is_deferred or (pending_id := find(scan)) is None:
            return None
        defer(self._attempt, pending_id)
        return StreamInterrupted(pending_id)

    async def streamed(self, scan: Scan, usage: Usage) -> None:
        find, items = self._attempt.format.kept_id, self._attempt.format.kept_items(scan)
        if not self._is_kept or find is None or (kept_id := find(scan)) is None:
            return
        binding = self._attempt.tasks.spawn(self.bind(kept_id, usage, items), "bind-answer")
        if items:
            await asyncio.shield(binding)

    async def answered(self, facts: PlainFacts, usage: Usage) -> bool:
        if facts.kept_id is None:
            return False
        is_pending = facts.is_pending and self._is_deferred
        if self._is_kept:
            await self.bind(facts.kept_id, None if is_pending else usage, facts.items)
        if is_pending:
            defer(self._attempt, facts.kept_id)
        return is_pending

    async def bind(self, kept_id: str, usage: Usage | None, items: Sequence[str] = ()) -> None:
        """Stores the bond of the answer, and those of its items. Its tokens are what a continuation repeats: the
        prompt at least, where the usage is not known."""
        call, route, bonds = self._attempt.call, self._attempt.route, self._active.services.bonds
        account = account_of(self._attempt.upstream, self._handle.key)
        usage = usage or Usage(call.params.prompt_tokens)
        model, batch = route.model or call.params.model, FORMATS[call.endpoint].batch
        key, kind, note, tokens = call.key, "" if batch is None else batch.kind, "", usage.total_tokens
        if call.passed is not None:
            kept_id, kind, note = task_id(call.passed.owner, route.upstream, kept_id), TASK, call.id
        bond = Bond(kept_id, key.id, key.team, route.upstream, account, model, tokens, call.started, kind, note)
        await asyncio.gather(*map(bonds.keep, (bond, *item_bonds(bond, items, usage.completion_tokens))))
        if tokens and call.bond is not None and call.bond.kind == CONVERSATION:
            await bonds.keep(call.bond._replace(tokens=tokens - call.params.prompt_tokens))


class Submission(Layer):
    """Sends a task over a fresh connection: tasks cost money, and a reused connection that ends without an answer does
    not show whether one was created."""

    async def carry(self, active: ActiveCall) -> Outcome:
        active.is_fresh = True
        return await self.inner.carry(active)


class LearnedLimits(Rider):
    """Learns an upstream's limits from the heads of its answers."""

    def __init__(self, active: ActiveCall, handle: AttemptHandle) -> None:
        self._limits = active.services.router.limits
        self._used = active.used_at_place
        self._handle = handle

    def request(self, draft: Attempt) -> Attempt:
        self._upstream, self._model = draft.route.upstream, draft.route.model or draft.call.params.model
        return draft._replace(riders=(*draft.riders, self)) if self._upstream in self._limits.learning else draft

    def head(self, head: Head) -> None:
        if head.status == 429:
            self._limits.refused(self._upstream, self._model, self._handle.key)
        self._limits.heard(self._upstream, self._model, self._handle.key, head.get, self._used)


class AdaptiveLimits(Rider):
    """Adapts the limits of an upstream to the time to the first token of a stream."""

    def __init__(self, active: ActiveCall, handle: AttemptHandle) -> None:
        self._limits, self._place = active.services.router.limits, active.place
        self._used, self._answered = active.used_at_place, handle.answered
        self._is_first = True

    def request(self, draft: Attempt) -> Attempt:
        self._began = time.perf_counter()
        is_adaptive = self._place is not None and draft.route.upstream in self._limits.adaptive
        return draft._replace(answered=self._token) if is_adaptive else draft

    def _token(self) -> None:
        if self._is_first and self._place is not None:
            self._limits.first_token(self._place.claims, self._used, time.perf_counter() - self._began)
            self._is_first = False
        self._answered()
