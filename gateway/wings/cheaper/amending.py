"""Chooses the cheaper model for a call whose key, person or team is above a share of a quota of money."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from gateway.accounting.reservation import Reservation
from gateway.config import Config
from gateway.observe.tracing import Trace
from gateway.pipeline.services import Amendment, Services, WingAmendment
from gateway.quota.issued import Overlay
from gateway.quota.scopes import member_scope, person_scope
from gateway.records import Amended, Call, Key

from .metrics import CHEAPER
from .policy import can_serve, may_change, reached, steps_of
from .settings import CheaperSettings, Step
from .shares import Shares

NONE = Overlay()


class CheaperModels(Amendment):
    """The steps of one configuration, in one worker."""

    def __init__(self, settings: CheaperSettings) -> None:
        self._settings = settings
        self._shares = Shares()

    def note(self, reservation: Reservation, parts: Services) -> None:
        self._shares.note(reservation.window_statuses)
        reservation.ended += (self._shares.settle,)

    async def amend(self, call: Call, parts: Services, trace: Trace) -> Amended | None:
        key, endpoint, asked = call.key, call.endpoint, call.params
        terms = parts.key_cache.terms
        steps = self._steps_of(key, terms.overlays)
        if (
            not steps
            or not may_change(endpoint, asked)
            or (found := parts.config.model_table.find(asked.model)) is None
        ):
            return None
        names, now = tuple({asked.model, found.name}), parts.clock.now()
        windows = [
            limit.window(now)
            for limit in terms.of(key)
            if limit.unit == "usd" and limit.is_calendar and limit.is_enforced and limit.scope in steps
            if limit.model is None or any(fnmatchcase(name, limit.model) for name in names)
        ]
        if not windows:
            return None
        shares = await self._shares.of(windows, parts.accounting.ledger, now)
        for each in reached(steps, shares, names):
            other = parts.config.model_table.instead(each.step.use, asked.model)
            if other is not None and can_serve(each.step, other, found, key, endpoint, asked, parts.config.upstreams):
                parts.accounting.telemetry.count(CHEAPER, each.window.scope.partition(":")[0], other.name)
                return Amended(model=other, model_reason=each.reason)
        return None

    def _steps_of(self, key: Key, overlays: Mapping[str, Overlay]) -> Mapping[str, Sequence[Step]]:
        """The steps that bind a key, by the scope of the windows that they look at."""
        settings, own, found = self._settings, f"key:{key.id}", dict[str, Sequence[Step]]()
        found[own] = steps_of(settings, settings.keys, key.id, overlays.get(own, NONE))
        if key.owner is not None:
            person = overlays.get(person_scope(key.owner), NONE)
            found[person_scope(key.owner)] = steps = steps_of(settings, settings.people, key.owner, person)
            if key.team is not None:
                found[member_scope(key.team, key.owner)] = steps
        if key.team is not None:
            team = f"team:{key.team}"
            found[team] = steps_of(settings, settings.teams, key.team, overlays.get(team, NONE))
        return {scope: steps for scope, steps in found.items() if steps}


def make(config: Config, _: Sequence[Amendment]) -> list[Amendment]:
    settings = config.section(CheaperSettings)
    return [CheaperModels(settings)] if settings.at_run_time or any(steps for _, steps in settings.lists) else []


AMENDMENT = WingAmendment(make)
