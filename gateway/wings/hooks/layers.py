"""The rider that copies answers for hooks which get their text."""

from __future__ import annotations

from gateway.config import Config
from gateway.pipeline.active_call import ActiveCall
from gateway.pipeline.stack import WingRider
from gateway.records import Call
from gateway.relay.attempt import Attempt, Rider
from gateway.upstream.health import AttemptHandle

from .answers import Listener
from .settings import HookSettings


class Copy(Rider):
    """Copies the answer of one attempt for each hook that listens to its call."""

    def __init__(self, active: ActiveCall, handle: AttemptHandle) -> None:
        pass

    def request(self, draft: Attempt) -> Attempt:
        for each in draft.log.reservation.ended:
            if isinstance(each, Listener) and each.answers is not None:
                draft = each.answers.attempted(draft)
        return draft


def _may_be_read(config: Config, call: Call) -> bool:
    return any(hook.answers_of for hook in config.section(HookSettings).after_call.values())


RIDER = WingRider(Copy, _may_be_read)
