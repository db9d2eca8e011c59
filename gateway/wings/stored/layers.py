"""The rider of answers that upstreams keep, and of work that goes on after its call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.accounting.bonds import TASK, task_id
from gateway.api.capabilities import Adaptation
from gateway.formats.format import PlainFacts, Scan
from gateway.formats.table import FORMATS
from gateway.pipeline.active_call import ActiveCall
from gateway.pipeline.stack import WingRider
from gateway.records import Bond, Usage
from gateway.relay import Attempt
from gateway.relay.attempt import Rider
from gateway.relay.deferred import defer, note_deferral
from gateway.store.bonds import CONVERSATION, item_bonds
from gateway.upstream.credentials import account_of
from gateway.upstream.health import AttemptHandle


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

    def left(self, pending_id: str) -> bool:
        defer(self._attempt, pending_id)
        return True

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


KEPT_ANSWER = WingRider(
    KeptAnswer,
    lambda _, call: bool(call.passed or FORMATS[call.endpoint].kept_id or FORMATS[call.endpoint].batch),
)
