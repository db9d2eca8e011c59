"""The record of a call: made of the call, its last route, and what came of it.

A usage may have parts that another model has run than the call's. An answer names these models as the upstream calls
them, often with the date of a version (`claude-haiku-4-5-20251001`). A request names them as the gateway does. A model
that the request does not name, because the upstream chose it, has no price that is known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gateway.api import other_models
from gateway.config import Model, Price, Route, is_plain_name
from gateway.quota import pricing, windows
from gateway.records import OTHER, Call, Ended, Record, Usage

_VERSION = re.compile(r"(?:[-@](?:\d{8}|latest)|-\d{4}-\d\d-\d\d)?")
"""The suffix of a model's name that names a version of it."""


class EndedAttempt(NamedTuple):
    """An attempt that has ended, or the wait of a call for room."""

    upstream: str
    """Name of the upstream, or of another that was asked about the call; empty for a wait."""
    fault: str
    """Empty: the attempt answered the call."""
    began_s: float
    """Seconds from the arrival of the call."""
    ended_s: float


def failed_text(attempts: Iterable[EndedAttempt]) -> str:
    return " ".join([f"{each.upstream}:{each.fault}" for each in attempts])


def timeline_text(attempts: Iterable[EndedAttempt]) -> str:
    ordered = sorted(attempts, key=lambda each: each.began_s)
    return " ".join([
        f"{each.upstream}:{each.began_s * 1000:.0f}:{each.ended_s * 1000:.0f}:{each.fault}" for each in ordered
    ])  # fmt: skip


def lost_record(call: Call, route: Route) -> Record:
    """The record of a call whose worker was killed: its whole reservation."""
    output = windows.output_limit(call) * call.params.candidates
    params = call.params
    usage = Usage(params.prompt_tokens, output, source="estimated", more=params.units, variant=params.variant)
    record = record_of(call, route, 0, usage, "lost")
    if record.price is None or (call.model.price is not None and call.model.price.record_text is not None):
        return record
    return record._replace(cost_nusd=windows.most_nusd(call, usage.prompt_tokens, output))


def lost_twice(record: Record) -> Record:
    """The record of a call with two attempts at once whose worker was killed, from `lost_record`."""
    usage = pricing.total_usage((record.usage, record.usage))._replace(parts=())
    return record._replace(usage=usage, cost_nusd=None if record.cost_nusd is None else 2 * record.cost_nusd)


def with_earlier(record: Record, usage: Usage, nusd: int) -> Record:
    """The record with what attempts with other models may have cost, which is charged by their prices."""
    cost_nusd = None if record.cost_nusd is None else record.cost_nusd + nusd
    return record._replace(usage=pricing.total_usage((usage, record.usage)), cost_nusd=cost_nusd)


def record_of(
    call: Call,
    route: Route | None,
    status: int,
    usage: Usage,
    ended: Ended,
    *,
    returned_model: str | None = None,
    first_byte_s: float | None = None,
    duration_s: float = 0.0,
    attempts: int = 0,
    is_truncated: bool = False,
    failed: str = "",
    timeline: str = "",
) -> Record:
    """A call and what became of it on this route; None: it was tried on none."""
    price = call.model.price
    if call.other_models and not usage.parts:
        price = _of_served(call, route, usage, returned_model)
    others = _other_prices(call, route, usage) if usage.parts else {}
    cost_nusd = price_text = None
    if price is not None:
        cost_nusd = pricing.cost_nusd(price, usage, call.started, others)
        price_text = price.record_text or pricing.record_text(price, usage, call.started)
    return Record(
        id=call.id,
        time=call.started,
        key=call.key.id,
        team=call.key.team,
        endpoint=call.endpoint,
        model=call.params.model,
        label_model=call.label_model,
        routed_model=(route.model if route else None) or call.params.model,
        returned_model=returned_model,
        upstream=route.upstream if route else "",
        status=status,
        stream=call.params.stream,
        usage=_without_parts(usage, others) if usage.parts else usage,
        ended=ended,
        first_byte_s=first_byte_s,
        duration_s=duration_s,
        attempts=attempts,
        truncated=is_truncated,
        client_request_id=call.client_request_id,
        cost_nusd=cost_nusd,
        price=price_text,
        failed=failed,
        user=call.user,
        tags=call.tags,
        timeline=timeline,
        model_reason=call.model_reason,
        amended=call.amended,
    )


def cost_nusd(call: Call, route: Route | None, usage: Usage) -> int | None:
    """Returns the cost in billionths of a US dollar; None if a price is not known."""
    others = _other_prices(call, route, usage) if usage.parts else {}
    price = _of_served(call, route, usage, None) if call.other_models and not usage.parts else call.model.price
    return pricing.cost_nusd(price, usage, call.started, others)


def _of_served(call: Call, route: Route | None, usage: Usage, returned_model: str | None) -> Price | None:
    """The price of a call that names further models, by the model that the answer names. Where a router may have served
    with any of them and the answer has no name of one, the dearest counts; None: the price is not known."""
    for known, model in _known(call, route):
        if returned_model is not None and _is_version(returned_model, known):
            return model.price
    if not other_models.may_choose(call.params.document.members):
        return call.model.price
    prices = [call.model.price, *[model.price for _, model in call.other_models]]
    costs = [pricing.cost_nusd(price, usage, call.started) for price in prices]
    return None if None in costs else max(zip(costs, prices, strict=True), key=lambda pair: pair[0] or 0)[1]


def _is_version(name: str, known: str) -> bool:
    return name.startswith(known) and _VERSION.fullmatch(name, len(known)) is not None


def _without_parts(usage: Usage, others: Mapping[str, Price | None]) -> Usage:
    """The usage as it is stored: an estimate where a model ran whose price is not known."""
    ran = {part.model for part in usage.parts if part.model}
    is_known = not ran or ran <= others.keys()
    return usage._replace(parts=(), source=usage.source if is_known else "estimated")


def _other_prices(call: Call, route: Route | None, usage: Usage) -> dict[str, Price | None]:
    """The prices of the models that parts of the usage name, by these names; a model that is not found is left out, and
    a found one without a price has None."""
    found = {}
    for name in {part.model for part in usage.parts if part.model}:
        for known, model in _known(call, route):
            if _is_version(name, known):
                found[name] = model.price
                break
    return found


def _known(call: Call, route: Route | None) -> Iterator[tuple[str, Model]]:
    """The call's own model and the further ones of its request, by their names here and at the route's upstream."""
    for name, model in ((call.model_name, call.model), *call.other_models):
        yield name, model
        for each in model.routes:
            if each.model is not None and (route is None or each.upstream == route.upstream):
                yield each.model, model


MAX_SERVED = 2000
"""Maximum number of names per worker; five times the catalogue of a large reseller."""


class ServedModels:
    """The names under patterns that this worker has seen served: only these may be groups of the daily sums, which are
    kept for years, because clients may ask for any name. Calls before the first answer with 200 count as `other`, but
    their records have the name. Some upstreams accept every name: hence the limit of names."""

    def __init__(self, names: Iterable[str] = (), most: int = MAX_SERVED) -> None:
        self._names = set(names)
        self._most = most

    def group(self, name: str) -> str:
        """The name of the group of calls for this name, which only a pattern serves."""
        return name if name in self._names else OTHER

    def note(self, name: str) -> str:
        """An upstream has served this name. Returns the name of the group."""
        if name not in self._names and len(self._names) < self._most and is_plain_name(name):
            self._names.add(name)
        return self.group(name)
