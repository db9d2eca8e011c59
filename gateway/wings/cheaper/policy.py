"""Which steps a call has reached, and whether its model may change. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from gateway.api import auth, capabilities, validate
from gateway.api.file_ids import named_files
from gateway.config import NamedModel, Upstream
from gateway.config.sections import ROLE_PREFIX
from gateway.errors import GatewayError
from gateway.formats import bridges
from gateway.quota.issued import Overlay
from gateway.quota.limit_headers import encoded
from gateway.records import Endpoint, Key, Params, Window

from .settings import DEFAULTS, SECTION_NAME, CheaperSettings, Step, is_cheaper

STEERED: frozenset[Endpoint] = frozenset({"completions", "chat", "messages", "responses", "generate_content"})
"""Endpoints whose calls may be served by another model. Vectors of two embedding models cannot be compared; counts of
tokens cost nothing; a session, a batch or a task has begun with its model."""


class Reached(NamedTuple):
    """A step that a window has reached."""

    step: Step
    window: Window
    share: float

    @property
    def reason(self) -> str:
        """The reason as the header and the record have it."""
        parts = ("when_above", f"limit={encoded(self.window.scope)}", f"unit={self.window.unit}",
                 f"per={self.window.per}", f"above={self.step.share:.4g}", f"share={self.share:.4f}")  # fmt: skip
        return "; ".join(parts)


def steps_of(
    settings: CheaperSettings, lists: Mapping[str, Sequence[Step]], name: str, overlay: Overlay
) -> Sequence[Step]:
    """The steps of a key, person or team: of this name in the file, else those that the store has, else those of the
    role in the overlay, else those of all others."""
    if name in lists:
        return lists[name]
    given: Sequence[Step] | None = overlay.more.get(SECTION_NAME) if settings.at_run_time else None
    return given if given is not None else lists.get(f"{ROLE_PREFIX}{overlay.role}", lists.get(DEFAULTS, ()))


def may_change(endpoint: Endpoint, asked: Params) -> bool:
    """Whether another model may serve such a call: nothing that it names or leaves behind at an upstream belongs to
    its model."""
    is_kept = asked.is_kept or asked.is_deferred or asked.document.members.get("store") is True
    is_bound = asked.refers_to is not None or any(item.is_sole for item in asked.items) or bool(asked.other_models)
    return endpoint in STEERED and not (is_kept or is_bound or asked.lines or named_files(asked.document))


def reached(
    steps: Mapping[str, Sequence[Step]], shares: Iterable[tuple[Window, float]], names: Sequence[str]
) -> list[Reached]:
    """The steps that are reached for a model of these names, the highest first; of equals, in the order of the scopes
    in `steps`."""
    found = [
        Reached(step, window, share)
        for window, share in shares
        for step in steps[window.scope]
        if share >= step.share and any(fnmatchcase(name, step.model) for name in names)
    ]
    order = [*steps]
    return sorted(found, key=lambda each: (-each.step.share, order.index(each.window.scope)))


def can_serve(
    step: Step, other: NamedModel, found: NamedModel, key: Key, endpoint: Endpoint, asked: Params,
    upstreams: Mapping[str, Upstream],
) -> bool:  # fmt: skip
    """Whether the model of a step can serve the call, by all that is known here, and costs less."""
    model = other.model
    if not is_cheaper(model.price, found.model.price) or not auth.may_use(key, other.name):
        return False
    if step.max_prompt_tokens is not None and asked.prompt_tokens > step.max_prompt_tokens:
        return False
    if not capabilities.lists(model, endpoint):
        return False
    if asked.document.large is not None and capabilities.may_rewrite(model, endpoint, upstreams):
        return False  # a refusal by its upstreams would not be known before another process has looked
    upstreams_of = [{route.upstream for route in each.routes} for each in (model, found.model)]
    if asked.account_bound_by and (upstreams_of[0] != upstreams_of[1] or len(upstreams_of[0]) > 1):
        return False
    try:
        validate.restrict(asked, key.limits, model.limits)
        capabilities.fitting(model, endpoint, asked, upstreams, bridges.refusal)
    except GatewayError:
        return False
    return True
