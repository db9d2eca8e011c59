"""The output limit of a call that sets none, where a quota has no room for the default of its model: what is left.

For models with `min_output_tokens`. Of a day's, week's or month's quota the call gets what is neither used nor
reserved. A rate refills by itself, so only its whole amount counts. Pure; the store decides whether the smaller call
has room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gateway.errors import GatewayError
from gateway.records import Call, Claim, WindowStatus

from . import windows

Claims = Callable[[Call], tuple[Claim, ...]]
"""Returns the claims of a call. Raises `GatewayError` if it can never fit."""


class OutputFit:
    """The smaller outputs that one call may have. `claims` returns its claims with each."""

    def __init__(self, call: Call, claims: Claims) -> None:
        self.claims = claims
        self._call = call

    @staticmethod
    def may_shrink(call: Call) -> bool:
        """Whether this call has the default output of its model, and the model permits a smaller one."""
        return call.model.min_output_tokens is not None and _has_default(call)

    def at_first(self) -> Call:
        """The call with the largest output that the whole quotas have room for; the call as it is if none has."""
        try:
            self.claims(self._call)
            return self._call
        except GatewayError:
            return self.largest() or self._call

    def largest(self, statuses: Sequence[WindowStatus] = ()) -> Call | None:
        """The call with the largest output, below its default, that has room beside what these windows hold; others
        are empty. None: not even `min_output_tokens` has."""
        left = {
            status.window.id: status.window.limit - status.used - status.reserved
            for status in statuses
            if not status.window.period_us
        }
        found: Call | None = None
        least, most = self._call.model.min_output_tokens or 1, windows.output_limit(self._call) - 1
        while least <= most:
            middle = (least + most + 1) // 2
            smaller = shrunk(self._call, middle)
            if self._has_room(smaller, left):
                found, least = smaller, middle + 1
            else:
                most = middle - 1
        return found

    def _has_room(self, call: Call, left: Mapping[str, int]) -> bool:
        try:
            claims = self.claims(_exact(call))
        except GatewayError:
            return False
        return all(amount <= left.get(window.id, window.limit) for window, amount in claims if window.is_enforced)


def shrunk(call: Call, output_tokens: int) -> Call:
    """The call and its fallbacks with at most these output tokens for each candidate, if it sets no limit itself."""
    if not _has_default(call) or 0 < windows.output_limit(call) <= output_tokens:
        return call
    return call._replace(
        params=call.params._replace(output_limit=output_tokens, is_output_limit_added=True),
        fallbacks=tuple([shrunk(other, output_tokens) for other in call.fallbacks]),
    )


def _exact(call: Call) -> Call:
    """Marks the prompt's estimate as exact: otherwise claims are cut to the whole quota, and the call exceeds it."""
    return call._replace(
        params=call.params._replace(is_prompt_exact=True), fallbacks=tuple([_exact(other) for other in call.fallbacks])
    )


def _has_default(call: Call) -> bool:
    return call.params.output_limit is None and call.params.default_output is None
