"""BodyChanges requests by the rules of the configuration, before their limits are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from gateway.api.large_body import MAX_KEPT
from gateway.config import Config
from gateway.config.model_names import is_pattern
from gateway.errors import InvalidRequest
from gateway.observe.tracing import Trace
from gateway.pipeline.services import Amendment, Services, WingAmendment
from gateway.records import Amended, Call, Document

from . import policy
from .body import rewritten
from .policy import MemberStep
from .settings import ParameterRule, ParameterSettings

MAX_KNOWN = 4096
"""Clients may invent names under a pattern."""

WHOLE = {"batches": "batches", "message_batches": "batches", "realtime": "Realtime sessions"}
"""Endpoints whose calls hold other requests than their own body."""


class Steps(NamedTuple):
    """The changes of the rules to calls of one model at one endpoint."""

    members: Mapping[str, MemberStep]
    headers: Mapping[str, str]


class Parameters(Amendment):
    """The rules of one configuration."""

    def __init__(self, settings: ParameterSettings, aliases: Mapping[str, str]) -> None:
        self._rules = settings.models
        self._aliases = aliases
        self._known: dict[tuple[str, str, str, str], Steps] = {}

    async def amend(self, call: Call, parts: Services, trace: Trace) -> Amended | None:
        steps = self._steps(call)
        if not steps.members and not steps.headers:
            return None
        amended = Amended(headers=tuple(steps.headers.items()))
        if steps.headers:
            amended = amended._replace(words=f"parameters set header {', header '.join(steps.headers)}")
        if not steps.members:
            return amended
        document = call.params.document
        if (kind := _kept(call)) is not None:
            raise InvalidRequest(
                f"The gateway changes parameters of the model `{call.params.model}`, which it cannot do in {kind}. Use "
                "another model, or ask the gateway's operator to limit the change to other endpoints.",
                param="model", code="parameters_not_changed",
            )  # fmt: skip
        members = policy.as_spelled(steps.members, document.members, in_two=call.endpoint in policy.IN_TWO)
        _refuse_inside_long(document, members)
        if (changes := policy.changes_of(members, document.members)) is None:
            return amended if steps.headers else None
        body = rewritten(document, changes.values, changes.removed)
        words = "; ".join(filter(None, (changes.words, amended.words)))
        return amended._replace(words=words, body=body)

    def _steps(self, call: Call) -> Steps:
        inner = "messages" if call.endpoint == "message_batches" else call.params.lines_endpoint
        names = (call.endpoint, call.model_name, call.params.model, inner or "")
        if (known := self._known.get(names)) is None:
            rules = policy.rules_of(self._rules, *names[:3], inner=inner)
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            known = self._known[names] = Steps(policy.steps_of(rules), policy.headers_of(rules))
        return known

    def shown(self, model: str) -> Mapping[str, Any]:
        """The rules for a model in the list of models. Values of headers may be secrets."""
        names = dict.fromkeys((self._aliases.get(model, model), model))
        keys = [key for key in self._rules if is_pattern(key) and any(fnmatchcase(name, key) for name in names)]
        rules = [rule for key in (*keys, *names) for rule in self._rules.get(key, ())]
        return {"parameters": [shown_rule(rule) for rule in rules]} if rules else {}


def shown_rule(rule: ParameterRule) -> dict[str, Any]:
    given = rule.model_dump(mode="json", exclude_defaults=True, exclude={"headers"})
    return {**given, "headers": sorted(rule.headers)} if rule.headers else given


def _kept(call: Call) -> str | None:
    """The kind of a call whose members cannot be changed; None: they can."""
    if call.passed is not None:
        return "calls of task APIs"
    return "forms" if call.params.document.form is not None else WHOLE.get(call.endpoint)


def _refuse_inside_long(document: Document, steps: Mapping[str, MemberStep]) -> None:
    """Raises `InvalidRequest` where a step changes a part of a value that another process has read, and whose parts are
    not known here."""
    if document.large is None:
        return
    for path in steps:
        name, _, below = path.partition(".")
        start, end = document.large.places.get(name, (0, 0))
        if below and end - start > MAX_KEPT:
            raise InvalidRequest(
                f"The gateway changes '{path}' of such requests, and cannot in so long a value. Send a '{name}' of at "
                f"most {MAX_KEPT} bytes.",
                param=name, code="parameters_not_changed",
            )  # fmt: skip


def make(config: Config, present: Sequence[Amendment]) -> list[Amendment]:
    settings = config.section(ParameterSettings)
    return [Parameters(settings, config.aliases)] if any(settings.models.values()) else []


AMENDMENT = WingAmendment(make)
