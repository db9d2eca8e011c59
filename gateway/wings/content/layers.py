"""Where kept calls are seen: a layer decides once for the call, and a rider taps the answer of each attempt."""

from __future__ import annotations

from gateway.config import Config
from gateway.pipeline.active_call import ActiveCall
from gateway.pipeline.plan import Layer, Outcome
from gateway.pipeline.stack import Around, WingLayer, WingRider
from gateway.records import Call
from gateway.relay.attempt import Attempt, Rider
from gateway.upstream.health import AttemptHandle

from . import policy
from .collecting import Collecting, KeptTrace
from .keeper import Keeper
from .settings import ContentSettings


class Keep(Layer):
    """Begins to collect a call that is kept. The parts of its log have its trace, so that its attempts know of it."""

    async def carry(self, active: ActiveCall) -> Outcome:
        if (collecting := _begun(active)) is not None:
            active.log.traced_by(KeptTrace(active.log.trace, collecting))
        return await self.inner.carry(active)


class Tap(Rider):
    """Collects the answer of one attempt."""

    def __init__(self, active: ActiveCall, handle: AttemptHandle) -> None:
        pass

    def request(self, draft: Attempt) -> Attempt:
        trace = draft.log.trace.within(KeptTrace)
        return draft if trace is None else trace.collecting.attempted(draft)


def _begun(active: ActiveCall) -> Collecting | None:
    call, services = active.call, active.services
    settings = services.config.section(ContentSettings)
    share = policy.share_of(settings, call.key.id, call.key.team, call.model_name)
    keeper = services.accounting.of_wing(Keeper)
    if keeper.stores is None or not policy.is_kept(call.id, share):
        return None
    return Collecting(call, keeper, settings.max_call_bytes)


def _may_be_kept(config: Config, call: Call) -> bool:
    return bool(config.section(ContentSettings).keep) and call.passed is None and call.endpoint in policy.READ


LAYER = WingLayer(Around.CALL, Keep, _may_be_kept)
RIDER = WingRider(Tap, _may_be_kept)
