"""The layer that carries a call with several prompts prompt by prompt where a route takes single ones only."""

from __future__ import annotations

from gateway.accounting.call_log import CallLog
from gateway.api.capabilities import SPLIT_WAYS
from gateway.config import Config
from gateway.errors import GatewayError
from gateway.pipeline.active_call import ActiveCall
from gateway.pipeline.plan import Layer, Outcome
from gateway.pipeline.stack import Around, WingLayer
from gateway.records import Call
from gateway.relay import Answer, Streamed
from gateway.relay.client_stream import ClientStream

from .prompts import PromptByPrompt


class FanOut(Layer):
    """Each prompt goes its own way from the first route that takes single prompts only, with the failures so far."""

    async def carry(self, active: ActiveCall) -> Outcome:
        if active.way not in SPLIT_WAYS:
            return await self.inner.carry(active)
        services = active.services

        async def carry_one(single: Call, share: CallLog, side: ClientStream) -> Answer | Streamed:
            part = active.part(single, share, side, active.place)
            return part.answered(await part.plan.stack.single.carry(part))

        try:
            return await PromptByPrompt(
                active.call, active.log, active.client, carry_one, services.config.upstreams, services.accounting,
                services.make, services.config.server.max_response_bytes,
            ).run(services.tasks)  # fmt: skip
        except GatewayError as error:
            error.headers = {**error.headers, **dict(active.log.headers())}
            raise


def _may_split(config: Config, call: Call) -> bool:
    ways = [config.upstreams[route.upstream].capabilities for route in call.model.routes]
    return call.endpoint == "completions" and not all(each.is_all for each in ways)


FAN_OUT = WingLayer(Around.STEP, FanOut, _may_split)
