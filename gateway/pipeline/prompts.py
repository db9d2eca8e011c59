"""The loop over attempts, where a call with several prompts goes on prompt by prompt."""

from __future__ import annotations

from gateway.accounting.call_log import CallLog
from gateway.api.capabilities import SPLIT_WAYS
from gateway.bridge import fan_out
from gateway.errors import GatewayError
from gateway.records import Call
from gateway.relay import Answer, Streamed
from gateway.relay.client_stream import ClientStream

from .active_call import ActiveCall


class FanOut(ActiveCall):
    """Carries each prompt of a call by itself where a route takes single prompts only."""

    __slots__ = ()
    split_ways = SPLIT_WAYS

    async def carry_singly(self) -> Answer | Streamed:
        """Carry each prompt by itself, from where the whole call has come to."""
        services, place = self.services, self.place

        async def carry_one(single: Call, share: CallLog, side: ClientStream) -> Answer | Streamed:
            return await ActiveCall(
                single, self.plan, self.routes, services, share, side, place, tried=self.tried
            ).carry()

        try:
            return await fan_out.carry(
                self.call, self.log, self.client, one=carry_one, upstreams=services.config.upstreams,
                accounting=services.accounting, tasks=services.tasks,
                max_response_bytes=services.config.server.max_response_bytes,
            )  # fmt: skip
        except GatewayError as error:
            error.headers = {**error.headers, **dict(self.log.headers())}
            raise
