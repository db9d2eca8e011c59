"""Which windows a call draws on, how much, and what a settlement gives back.

Three kinds of window, all in integer units:

- A *rate* (second, minute, hour, N seconds) is a bucket: `used` is its level, which leaks at limit/period. The whole
  limit may be spent at once after a pause. A level is kept, not the arrival time of a GCRA, because an arrival time
  would change its meaning when the limit changes.
- A *calendar* window (day, week, month, UTC) keeps `used` (settled) and `reserved` (drawn, still running) apart, so
  that "spent" and "reserved by running calls" are different errors.
- *Parallel* calls: `used` counts the open leases.

A draw takes the estimate; a settlement replaces it by the truth. On a rate of tokens or money a draw takes the output
that such calls had lately (`recent_output.py`), because a rate that is full of reservations serves a few per cent of
itself. Use beyond that is charged when the call ends, also above the limit: later calls wait until it has leaked. The
unused rest goes back, less of it the longer the call ran, because others were served by the leak meanwhile: see
`_given_back`.

The stores apply these functions (or, in Redis, the same arithmetic as a script); nothing here reads a clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from types import MappingProxyType
from typing import NamedTuple

from gateway import units
from gateway.config import PersonLimits, Price, Quota, Team
from gateway.config.rates import variant_of
from gateway.errors import InvalidRequest, ModelNotPriced
from gateway.records import (
    UPSTREAM,
    Call,
    Claim,
    Key,
    Params,
    Record,
    Refused,
    Unit,
    Usage,
    Window,
    WindowState,
    WindowStatus,
)

from . import pricing
from .issued import Overlay, person_limits, topped_up
from .labels import LabelTable
from .pricing import format_usd
from .scopes import format_scope, holder, is_of_label, member_scope, person_scope, scope_kind

IN_THE_WAY_US = 1_000_000
"""Suggested wait for running calls to end. Their end is unknown; one second is short and does not flood the gateway."""

LEAST_OF_ESTIMATE = 8
"""A prompt has at least this part of its estimated tokens: that is 32 bytes a token, and text has 3 to 12."""

GIVE_BACK_US = 240_000_000
"""How old a draw on a rate may be for its rest to go back, if the rate's own period is not longer."""

BY_LIMIT = "|output_limit"
"""The end of the name of an upstream's window that counts output limits: nothing that was drawn goes back."""

MAX_CACHED_KEYS = 20_000
"""Keys whose terms are kept, a kilobyte each; and pairs of a key and a model."""


# ------------------------------------------------------------------------------------------------ what a call claims


def output_limit(call: Call) -> int:
    """The most output tokens of one candidate of this call; 0: no limit is known."""
    params = call.params
    if params.output_limit is not None:
        return params.output_limit
    if params.default_output is not None:
        return params.default_output
    return call.model.max_output_tokens or 0


@dataclass(slots=True)
class Limit:
    """One limit that binds a key, and its window: the one that was asked for last is kept."""

    scope: str
    unit: Unit
    per: str
    model: str | None
    limit: int
    period_us: int = 0
    is_enforced: bool = True
    is_calendar: bool = False
    reserved: int = 0
    """Part of the limit that is for interactive calls alone."""
    top_ups: Mapping[str, int] = field(default_factory=dict)
    """How much more one calendar window holds, by its own name."""
    is_by_limit: bool = False
    """An upstream counts the output limit of a call, however much it uses."""
    is_by_use: bool = field(init=False)
    """A rate of tokens or money, on which a call draws the output that such calls had lately."""
    _day: int = -1
    _one: Claim | None = None

    def __post_init__(self) -> None:
        self.is_by_use = self.period_us > 0 and self.unit in ("tokens", "usd") and not self.is_by_limit

    def one(self, started: float) -> Claim:
        """A claim of one unit on the window to which a call belongs that began at this Unix time in seconds."""
        day = int(started // 86400) if self.is_calendar else 0
        if self._one is None or self._day != day:
            self._one, self._day = Claim(self._open(started), 1), day
        return self._one

    def window(self, started: float) -> Window:
        return self.one(started).window

    def _open(self, started: float) -> Window:
        starts, resets_us = calendar_window(self.per, started) if self.is_calendar else ("", 0)
        name = "|".join((self.scope, self.unit, self.per, self.model or "", starts))
        name += BY_LIMIT if self.is_by_limit else ""
        return Window(
            name, self.scope, self.unit, self.per, self.model, self.limit + self.top_ups.get(starts, 0), self.period_us,
            starts, resets_us, self.is_enforced,
        )  # fmt: skip


class CallLimits(NamedTuple):
    """The limits that bind the calls of one key for one model on one day."""

    each: tuple[Limit, ...]
    units: tuple[Claim, ...]
    """A claim of one unit on the window of each."""
    is_by_use: bool = False
    """Whether one is a rate of tokens or money."""

    @classmethod
    def of(cls, each: Iterable[Limit], started: float) -> CallLimits:
        """Returns the limits for calls that begin on the day of `started`, a Unix time in seconds."""
        limits = tuple(each)
        is_by_use = any(limit.is_by_use for limit in limits)
        return cls(limits, tuple([limit.one(started) for limit in limits]), is_by_use)

    def counting_only(self) -> CallLimits:
        """The same, which refuse nothing: for what has begun at an upstream, and is counted whatever they have left."""
        return CallLimits(
            tuple([replace(limit, is_enforced=False) for limit in self.each]),
            tuple([claim._replace(window=claim.window._replace(is_enforced=False)) for claim in self.units]),
            self.is_by_use,
        )


class LimitTable:
    """Every limit that binds a key: its own, its owner's, its team's and the gateway's.

    `teams` and `people` are all there are, by name; `overlays` by the scope of the windows that they top up.
    """

    def __init__(
        self,
        quotas: Sequence[Quota],
        teams: Mapping[str, Team],
        overlays: Mapping[str, Overlay],
        people: Mapping[str, PersonLimits] = MappingProxyType({}),
        upstreams: Mapping[str, Sequence[Quota]] = MappingProxyType({}),
    ) -> None:
        self._quotas = quotas
        self.teams = teams
        self.overlays = overlays
        self._people = people
        self._upstreams = upstreams
        self.of_upstreams = {
            scope: tuple(self._each(scope, quotas, is_enforced=True))
            for scope, quotas in [(f"{UPSTREAM}{name}", quotas) for name, quotas in upstreams.items()]
        }
        """The quotas of upstreams, by their scopes."""
        self.labels = LabelTable(quotas, teams, overlays)
        self._known: dict[str, tuple[Key, tuple[Limit, ...]]] = {}
        self._of_calls: dict[tuple[str, str, str | None, tuple[str, ...]], tuple[Key, int, CallLimits]] = {}

    def anew(self) -> LimitTable:
        """The same without the cache: a scan over all keys would evict the entries of active ones."""
        return LimitTable(self._quotas, self.teams, self.overlays, self._people, self._upstreams)

    def of(self, key: Key) -> tuple[Limit, ...]:
        """The terms of this key, parallel calls last."""
        known = self._known.get(key.id)
        if known is None or (known[0] is not key and known[0] != key):  # two secrets may lead to equal keys
            if len(self._known) >= MAX_CACHED_KEYS:
                self._known.clear()
            known = self._known[key.id] = (key, tuple(self._work_out(key)))
        return known[1]

    def of_scope(self, scope: str, owner: Key | None = None) -> Sequence[Limit]:
        """The terms of a scope alone; those of a key need it as the owner."""
        if scope.startswith(UPSTREAM):
            return self.of_upstreams.get(scope, ())
        if is_of_label(scope):
            return list(self.of_label(scope, holder(scope)))
        return [term for term in self.of(owner or holder(scope)) if term.scope == scope]

    def of_call(self, call: Call) -> CallLimits:
        """Those of its key's limits that count this model, with the windows of the day."""
        tagged: tuple[str, ...] = ()
        day = int(call.started // 86400)
        if self.labels.owners and call.tags:
            tagged = self.labels.of_tags(call, calendar_window("month", call.started)[0])
        names = (call.key.id, "" if call.model_reason else call.params.model, call.target, tagged)
        known = self._of_calls.get(names)
        if known is None or known[1] != day or (known[0] is not call.key and known[0] != call.key):
            if len(self._of_calls) >= MAX_CACHED_KEYS:
                self._of_calls.clear()
            each_limit = [*self.of(call.key), *[each for scope in tagged for each in self.of_label(scope, call.key)]]
            limits = [each for each in each_limit if each.model is None or covers(each.model, call)]
            known = self._of_calls[names] = call.key, day, CallLimits.of(limits, call.started)
        return known[2]

    def _work_out(self, key: Key) -> Iterator[Limit]:
        is_enforced = not key.is_shadow
        own = f"key:{key.id}"
        yield from self._each(own, key.quotas, is_enforced)
        person = None if key.owner is None else self._person(key.owner)
        is_of_person_enforced = is_enforced and person is not None and person.on_exceeded == "deny"
        if person is not None:
            yield from self._each(person_scope(key.owner or ""), person.quotas, is_of_person_enforced)
        if key.team is not None and (team := self.teams.get(key.team)) is not None:
            if key.owner is not None:
                yield from self._each(member_scope(key.team, key.owner), team.member_quotas, is_enforced)
            yield from self._each(f"team:{key.team}", team.quotas, is_enforced)
        yield from self._each("gateway", self._quotas, is_enforced)
        if key.labels:
            for scope, quotas in self.labels.of_key(key):
                yield from self._each(scope, quotas, is_enforced)
        if key.max_parallel is not None:
            yield Limit(own, "parallel", "", None, key.max_parallel, is_enforced=is_enforced)
        if person is not None and person.max_parallel is not None:
            yield Limit(
                person_scope(key.owner or ""), "parallel", "", None, person.max_parallel,
                is_enforced=is_of_person_enforced,
            )  # fmt: skip

    def of_label(self, scope: str, key: Key) -> Iterator[Limit]:
        """The terms of a value's scope that bind the key."""
        return self._each(scope, self.labels.quotas_of(scope, key), not key.is_shadow)

    def of_labels(self, now: float) -> Iterator[tuple[str | None, Limit]]:
        """The terms of the values that tags brought, each with its team."""
        for team, scope, quotas in self.labels.values(calendar_window("month", now)[0]):
            yield from [(team, limit) for limit in self._each(scope, quotas, is_enforced=True)]

    def _person(self, name: str) -> PersonLimits:
        return person_limits(self._people, name, self.overlays.get(person_scope(name)))

    def _each(self, scope: str, quotas: Iterable[Quota], is_enforced: bool) -> Iterator[Limit]:
        overlay, has_label = self.overlays.get(scope), is_of_label(scope)
        for quota in quotas:
            if (quota.label is not None) != has_label:
                continue
            seconds, per = quota.per_s, str(quota.per)
            top_ups = topped_up(overlay.top_ups, quota.unit, per, quota.model) if overlay else {}
            yield Limit(
                scope, quota.unit, per, quota.model, quota.limit, (seconds or 0) * 1_000_000, is_enforced,
                is_calendar=seconds is None, top_ups=top_ups,
            )  # fmt: skip


def claims(call: Call, limits: CallLimits) -> tuple[Claim, ...]:
    """Everything the call draws on, of the limits that count its model.

    Raises `InvalidRequest` if it can never fit, and `ModelNotPriced` if it draws on a quota of money and its price is
    unknown.
    """
    output = output_limit(call) * call.params.candidates
    return tuple([
        _metered(call, limit, unit.window, output) if limit.unit == "tokens" or limit.unit == "usd" else unit
        for limit, unit in zip(limits.each, limits.units, strict=True)
    ])  # fmt: skip


def _metered(call: Call, limit: Limit, window: Window, output: int) -> Claim:
    """The claim of the call on a window of tokens or money, with `output` tokens at most for each candidate."""
    params, model = call.params, call.model
    most = _amount(call, limit.unit, params.prompt_tokens, output)
    if limit.is_enforced:
        if most is None and model.unpriced == "deny":
            is_priced_by_count = call.passed is not None and params.output_param != "model"
            raise _no_number(call) if is_priced_by_count else not_priced(call)
        if params.output_limit is None and params.default_output is None and model.max_output_tokens is None:
            raise _limit_missing(call, limit)
    if most is None:
        return Claim(window, 0)
    if most <= window.limit:
        if limit.is_by_use and call.expected_output is not None:
            expected = min(output, call.expected_output * params.candidates)
            most = _amount(call, limit.unit, params.prompt_tokens, expected) or 0
        return Claim(window, most)
    # The prompt is an estimate: it alone makes a refusal that no wait can end only where no error of it explains that.
    sure = most if params.is_prompt_exact else _amount(call, limit.unit, 0, output) or 0
    if limit.is_enforced:
        if sure > window.limit:
            raise _never_fits(call, window, sure)
        if not params.is_prompt_exact and (least := _least_of_prompt(call, limit.unit)) > window.limit:
            raise _prompt_never_fits(call, window, least)
    return Claim(window, min(most, max(window.limit, sure)))


def request_rates(terms: Iterable[Limit]) -> tuple[Limit, ...]:
    """The limits of requests per time: a look at a task counts in these only."""
    return tuple([term for term in terms if term.unit == "requests" and not term.is_calendar])


def dearest(claims: Iterable[Iterable[Claim]]) -> tuple[Claim, ...]:
    """Claims that cover each of several ways to serve one call: of each window the highest amount."""
    most: dict[str, Claim] = {}
    for claim in [claim for way in claims for claim in way]:
        if (known := most.get(claim.window.id)) is None or known.amount < claim.amount:
            most[claim.window.id] = claim
    return tuple(most.values())


def covers(pattern: str, call: Call) -> bool:
    """Whether a quota for these models counts the call: by the name that was asked for (and serves), or the model's."""
    return (not call.model_reason and fnmatchcase(call.params.model, pattern)) or fnmatchcase(call.model_name, pattern)


def _limit_missing(call: Call, term: Limit) -> InvalidRequest:
    """A call without any output limit cannot be reserved. The configuration is checked for that; a key created
    before the model's setting was removed is not."""
    return InvalidRequest(
        f"This request counts in a quota of {format_scope(term.scope)} and sets no limit for its output. Set "
        f"'{call.params.output_param}'.",
        param=call.params.output_param,
        code="output_limit_missing",
    )


def _no_number(call: Call) -> InvalidRequest:
    name = call.params.output_param
    return InvalidRequest(
        f"Expected a number from 1 to 999999 in '{name}': the price of this call depends on it, and your usage is "
        "limited in US dollars.",
        param=name,
        code="invalid_value",
    )


def not_priced(call: Call) -> ModelNotPriced:
    """The refusal of a call whose price is unknown: that of the variant, or of the whole model."""
    return ModelNotPriced(call.params.model, "" if call.model.price is None else variants_of(call.params)[0])


def _amount(call: Call, unit: Unit, prompt_tokens: int, output_tokens: int) -> int | None:
    """These tokens of the call in tokens or in money; None: in money, at an unknown price."""
    if unit == "usd":
        return most_nusd(call, prompt_tokens, output_tokens)
    return prompt_tokens + output_tokens


def _least_of_prompt(call: Call, unit: Unit) -> int:
    """The least that an estimated prompt uses: in money at the price of plain input, 0 where that is unknown."""
    tokens = call.params.prompt_tokens // LEAST_OF_ESTIMATE
    if unit != "usd":
        return tokens
    models = call.model, *[model for _, model in call.other_models]
    return min([pricing.cost_nusd(model.price, Usage(tokens), call.started) or 0 for model in models])


def most_nusd(call: Call, prompt_tokens: int, output_tokens: int) -> int | None:
    """The highest possible cost of these tokens, with the dearest of the models that the call's body names; None if
    the price is unknown."""
    price = call.model.price
    if call.other_models and price is not None:
        models = call.model, *[model for _, model in call.other_models]
        alone = [call._replace(model=model, other_models=()) for model in models]
        each_most = [most_nusd(each, prompt_tokens, output_tokens) for each in alone]
        known = [most for most in each_most if most is not None]
        return max(known) if len(known) == len(alone) else None
    if price is None or price.nusd_per_million is not None:
        return pricing.cost_nusd(price, Usage(prompt_tokens, output_tokens))
    params, variants = call.params, variants_of(call.params)
    if params.lines:  # each may be served in a region, which has a price of its own
        variants += [name for name in price.plan.at(call.started) if name.startswith(f"{variants[0]}-")]
    dearest = 0
    for each in variants:
        most = pricing.most_nusd(
            price, prompt_tokens, output_tokens, call.started, each, partial(_may_use, call, price),
            params.units,
        )  # fmt: skip
        if most is None:
            return None
        if most > dearest:
            dearest = most
    return dearest


def at_dearest(call: Call, usage: Usage, prompt: int, completion: int) -> Usage:
    """The usage with these tokens of its prompt and of its completion, of which only the number is known, in the units
    in which they cost most: as they were reserved."""
    price = call.model.price
    if price is None or price.nusd_per_million is not None:
        return usage
    of = pricing.dearest_units(price, usage.prompt_tokens, call.started, usage.variant, partial(_may_use, call, price))
    found = {name: count for name, count in zip(of, (prompt, completion), strict=True) if name in units.UNITS}
    usage = usage._replace(more=units.total([usage.more, units.counts(found)]))
    return usage._replace(reasoning_tokens=completion) if of[1] == "reasoning" else usage


SERVICES = frozenset({"service_tier", "serviceTier", "speed", "fallbacks", "inference_geo"})
"""All members by which a request asks for a variant."""


def variants_of(params: Params) -> list[str]:
    """The variants of the price that a request asks for: the first for itself, others for fallbacks of a message
    (anthropic-sdk, BetaFallbackParam)."""
    members = params.document.members
    asked = "fast" if members.get("speed") == "fast" else params.variant or members.get("service_tier")
    asked = asked or members.get("serviceTier")  # Gemini's, with a prefix at times (google-genai, ServiceTier)
    asked = asked.lower().removeprefix("service_tier_") if isinstance(asked, str) else ""
    if asked == "fast" and members.get("speed") != "fast":  # OpenAI's name of `priority`, which its answers have
        asked = "priority"
    given = members.get("fallbacks")
    fallbacks = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    asked_for = [asked, *["fast" for each in fallbacks if each.get("speed") == "fast"]]
    return [variant_of(each, members.get("inference_geo")) for each in asked_for]


_WORDS: Mapping[str, tuple[str, ...]] = {
    "cache_write": ("cache_control",), "cache_write_1h": ('"1h"', '"12h"'), "audio_in": ("audio", "file"),
    "audio_out": ("audio",), "image_in": ("image", "file"), "cached_audio": ("audio", "file"),
    "cached_image": ("image", "file"), "video_in": ("video", "file"),
}  # fmt: skip
"""Words of which one, in any case, is in every body of a call that can use a unit. It may be there for another reason,
too: then more is reserved, never less. Pictures are also made by models that are not asked for one."""

_ESCAPED = re.compile(r"\\u00(?:3[0-9]|[46][1-9a-f]|[57][0-9a])", re.IGNORECASE)
"""An escape in JSON of a letter or a digit of ASCII. A body with one may have any word."""


def _may_use(call: Call, price: Price, unit: str) -> bool:
    params, document = call.params, call.params.document
    if params.token_parts and unit in dict(params.token_parts):
        return True
    if unit not in _WORDS or document.large is not None or document.form is not None:  # whose text was not kept
        return True
    if unit == "cache_write" and not price.cache_write_on_request:
        return True
    text = document.text.lower()
    return any(word in text for word in _WORDS[unit]) or _ESCAPED.search(text) is not None


def calendar_window(per: str, now: float) -> tuple[str, int]:
    """The UTC day, ISO week or month of a Unix time in seconds: its name, and its end in Unix microseconds."""
    return _window_of_day(per, int(now // 86400))


@lru_cache(maxsize=16)
def _window_of_day(per: str, number: int) -> tuple[str, int]:
    """Returns the window by the day's number since 1970. Cached, because every call of a day needs it, and calendar
    arithmetic is slow."""
    day = datetime.fromtimestamp(number * 86400, UTC)
    if per == "day":
        return day.strftime("%Y-%m-%d"), int((day + timedelta(days=1)).timestamp()) * 1_000_000
    if per == "week":
        year, week, weekday = day.isocalendar()
        return f"{year:04d}-W{week:02d}", int((day + timedelta(days=8 - weekday)).timestamp()) * 1_000_000
    first = (day.replace(day=28) + timedelta(days=4)).replace(day=1)
    return day.strftime("%Y-%m"), int(first.timestamp()) * 1_000_000


def _never_fits(call: Call, window: Window, sure: int) -> InvalidRequest:
    params: Params = call.params
    name = params.output_param
    if params.is_prompt_exact and (_amount(call, window.unit, params.prompt_tokens, 0) or 0) > window.limit:
        name = params.prompt_param  # no smaller output would make it fit
    what = f"use up to {sure} tokens ({output_limit(call)} for each of {params.candidates} outputs)"
    if params.is_prompt_exact:
        what = f"use up to {sure} tokens, its prompt of {params.prompt_tokens} included"
    whole = f"{window.limit} tokens"
    if window.unit == "usd":
        parts = f"{output_limit(call)} tokens for each of {params.candidates} outputs"
        if params.is_prompt_exact:
            parts = f"a prompt of {params.prompt_tokens} tokens and {parts}"
        what = f"cost up to {format_usd(sure)} ({parts})"
        whole = format_usd(window.limit)
    return InvalidRequest(
        f"This request may {what}, more than the whole quota of {whole} per {format_per(window.per)} of "
        f"{format_scope(window.scope)}. Waiting would not help: ask for fewer tokens with '{name}'. "
        f"This limit can be raised by {scope_kind(window.scope).raisers}.",
        param=name,
        code="quota_too_small",
    )


def _prompt_never_fits(call: Call, window: Window, least: int) -> InvalidRequest:
    params, is_money = call.params, window.unit == "usd"
    tokens = params.prompt_tokens // LEAST_OF_ESTIMATE
    cost = f", which cost {format_usd(least)}" if is_money else ""
    whole = format_usd(window.limit) if is_money else f"{window.limit} tokens"
    return InvalidRequest(
        f"The prompt of this request has about {params.prompt_tokens} tokens, and at least {tokens}{cost}: more than "
        f"the whole quota of {whole} per {format_per(window.per)} of {format_scope(window.scope)}. Waiting would "
        f"not help: shorten '{params.prompt_param}'. This limit can be raised by "
        f"{scope_kind(window.scope).raisers}.",
        param=params.prompt_param,
        code="quota_too_small",
    )


def format_per(per: str) -> str:
    """A window's length in words."""
    return f"{per} seconds" if per.isdigit() else per


def format_time(us: int) -> str:
    """A moment in Unix microseconds as UTC, rounded up to a second, so that it has come true by then."""
    return datetime.fromtimestamp(-(-us // 1_000_000), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ------------------------------------------------ what a store applies; on Redis it is store/redis/apply_limits.lua


def leak(window: Window, state: WindowState, now_us: int) -> WindowState:
    """The state at `now_us`. Whole units leak; `at_us` keeps the rest of one, so that looking often costs nothing."""
    if not window.period_us or now_us <= state.at_us:
        return state
    units, rest = divmod((now_us - state.at_us) * window.limit, window.period_us)
    if units >= state.used:
        return WindowState(0, state.reserved, now_us)
    # Rounded so that the window is never ahead of its rate.
    return WindowState(state.used - units, state.reserved, now_us - rest // window.limit)


def check(claim: Claim, state: WindowState, now_us: int) -> Refused | None:
    """Why this claim does not fit the (leaked) state, or None where it does."""
    window, amount = claim
    if state.used + state.reserved + amount <= window.limit or not window.is_enforced:
        return None
    retry_after_us: int | None = IN_THE_WAY_US
    if window.period_us:
        missing = state.used + amount - window.limit
        retry_after_us = state.at_us + -(-missing * window.period_us // window.limit) - now_us
    elif window.unit != "parallel" and state.used + amount > window.limit:
        retry_after_us = None
    return Refused(window_status(window, state, now_us), amount, retry_after_us)


def later_refusal(one: Refused | None, other: Refused) -> Refused:
    """Returns the refusal that lasts longer; one of the caller's own limits precedes one of an upstream's, because
    another route does not help against the former."""
    if one is None:
        return other

    def lasts(refused: Refused) -> tuple[bool, bool, int]:
        wait, is_own = refused.retry_after_us, not is_of_upstream(refused.window_status.window)
        return (is_own, True, refused.window_status.reset_us) if wait is None else (is_own, False, wait)

    return max(one, other, key=lasts)


def refusal(drawing: Sequence[tuple[Claim, WindowState]], now_us: int) -> Refused | None:
    """Why claims do not fit the (leaked) states they are drawn on: the worst reason; None where all of them do."""
    refused: Refused | None = None
    for claim, state in drawing:
        if state.used + state.reserved + claim.amount <= claim.window.limit:
            continue  # as in `check`
        if (short := check(claim, state, now_us)) is not None:
            refused = later_refusal(refused, short)
    if refused is None:
        return None
    return refused._replace(
        window_statuses=tuple([window_status(claim.window, state, now_us) for claim, state in drawing])
    )


def draw(claim: Claim, state: WindowState) -> WindowState:
    """The (leaked) state after a draw."""
    if claim.window.starts:
        return WindowState(state.used, state.reserved + claim.amount, state.at_us)
    return WindowState(state.used + claim.amount, state.reserved, state.at_us)


def _recharge(window: Window, state: WindowState, charged: int, actual: int, age_us: int) -> WindowState:
    """The state of a rate that was charged one amount and is charged another instead: more in full, and of less a part
    goes back."""
    if actual >= charged:
        return WindowState(state.used + actual - charged, state.reserved, state.at_us)
    give_back = _given_back(window, charged - actual, max(0, age_us))
    return WindowState(max(0, state.used - give_back), state.reserved, state.at_us)


def _given_back(window: Window, rest: int, age_us: int) -> int:
    """The part of the unused rest of a draw of this age that goes back: all of it at once, evenly less with its age,
    and nothing when it is as old as `GIVE_BACK_US` or the period.

    So all that running calls may get back never exceeds the level by more than the rate refills in that time, however
    long the rate was busy: while they could get back more, they lose it faster than the rate leaks. That bounds the
    calls that a burst of ends admits. The part that cannot have leaked, were all the leak that of this call, goes back
    in any case.
    """
    span_us = max(window.period_us, GIVE_BACK_US)
    lost = -(-rest * min(age_us, span_us) // span_us)
    return rest - min(rest, lost, _leaked_since(window, age_us))


def settle(claim: Claim, state: WindowState, actual: int, age_us: int) -> WindowState:
    """The (leaked) state after a draw of this age turned out to be `actual` units."""
    window, amount = claim
    if window.starts:
        return WindowState(state.used + actual, max(0, state.reserved - amount), state.at_us)
    if not window.period_us:
        return WindowState(max(0, state.used - amount), state.reserved, state.at_us)
    return _recharge(window, state, amount, actual, age_us)


def void(claim: Claim, state: WindowState, age_us: int) -> WindowState:
    """The (leaked) state after a draw of this age was taken back: the call never was, not even as a request."""
    return settle(claim, state, 0, age_us)


def charge(window: Window, state: WindowState, actual: int, age_us: int) -> WindowState:
    """The (leaked) state after `actual` units of a call that began `age_us` ago and has no known reservation.

    A rate is charged what would be left of it if it had been charged when the call began.
    """
    if window.starts:
        return WindowState(state.used + actual, state.reserved, state.at_us)
    if not window.period_us:
        return state
    return WindowState(state.used + max(0, actual - _leaked_since(window, age_us)), state.reserved, state.at_us)


def correct(window: Window, state: WindowState, charged: int, actual: int, age_us: int) -> WindowState:
    """The (leaked) state after a draw of this age that was closed as lost and `charged` turned out to be `actual`.

    By the difference: more is charged in full, and of less a part goes back, as at a settlement. To take a lost call
    back altogether, `actual` is 0. The slot of a parallel call was freed when it was lost.
    """
    if window.starts:
        return WindowState(max(0, state.used + actual - charged), state.reserved, state.at_us)
    if not window.period_us:
        return state
    return _recharge(window, state, charged, actual, age_us)


def reopen(claim: Claim, state: WindowState, charged: int, age_us: int) -> WindowState:
    """The (leaked) state after a draw of this age that was closed as lost and `charged` is open again: as before it was
    closed."""
    window, amount = claim
    if window.starts:
        return WindowState(max(0, state.used - charged), state.reserved + amount, state.at_us)
    if not window.period_us:
        return WindowState(state.used + amount, state.reserved, state.at_us)
    return _recharge(window, state, charged, amount, age_us)


def _leaked_since(window: Window, age_us: int) -> int:
    """Units that a rate has leaked in this time."""
    return max(0, age_us) * window.limit // window.period_us


def is_of_upstream(window: Window) -> bool:
    """Whether this counts what an upstream is sent, not what a caller spends."""
    return window.id.startswith(UPSTREAM)


def unreserved(window: str) -> str:
    """A second name of a window, for calls that may not take what is reserved there: full for them is not full for
    all."""
    return f"{window}|unreserved"


def own(window: str, owner: str) -> str:
    """A second name of a window, for calls that a limit is lowered for, or that are paused, alone."""
    return f"{window}|own|{owner}"


def named_window(name: str) -> str:
    """The window of a second name."""
    return name.partition("|own|")[0].removesuffix("|unreserved")


def is_own(name: str) -> bool:
    """Whether this is a second name of a window, for some calls alone."""
    return "|own|" in name


def _used_by(pattern: str, record: Record) -> bool:
    return (not record.model_reason and fnmatchcase(record.model, pattern)) or fnmatchcase(record.label_model, pattern)


def charges(record: Record, claims: Sequence[Claim]) -> list[int]:
    """Units that a finished call used of the windows of its claims, in their order; those on upstreams are the last.

    A quota for other models than the one that was asked for or served, which was reserved for a fallback, is not used.
    An unknown cost counts as what was reserved: that is nothing where the model has no price, and the most that the
    call was expected to cost where a unit that was used has none. An upstream has seen each request that was reserved
    there, and the tokens where it served the call; where it counts output limits, those of each request. Where a dearer
    model took over, a day, week or month there has two claims: the first is charged.
    """
    usage, cost, charged = record.usage, record.cost_nusd, []
    for window, amount in claims:
        unit = window.unit
        if window.model is not None and not is_of_upstream(window) and not _used_by(window.model, record):
            charged.append(0)
        elif unit == "tokens":
            charged.append(usage.prompt_tokens + usage.completion_tokens)
        else:
            charged.append(1 if unit == "requests" else 0 if unit == "parallel" else amount if cost is None else cost)
    if claims and claims[-1][0].id.startswith(UPSTREAM):
        served = (f"{UPSTREAM}{record.upstream}|", f"{UPSTREAM}{record.upstream}#")
        counted = set[str]()
        for place, (window, amount) in enumerate(claims):
            if not window.id.startswith(UPSTREAM):
                continue
            is_again = window.id in counted and (cost is not None or window.unit == "tokens")
            if window.unit == "requests" or window.id.endswith(BY_LIMIT):
                charged[place] = amount
            elif is_again or not window.id.startswith(served):
                charged[place] = 0
            elif window.starts:
                counted.add(window.id)
    return charged


def window_status(window: Window, state: WindowState, now_us: int) -> WindowStatus:
    """How a (leaked) state looks to its owner."""
    reset_us = max(0, window.resets_us - now_us)
    if window.period_us:
        reset_us = max(0, state.at_us + -(-state.used * window.period_us // window.limit) - now_us) if state.used else 0
    return WindowStatus(window, state.used, state.reserved, reset_us)


def window_statuses(windows: Iterable[Window], states: Mapping[str, WindowState], now_us: int) -> list[WindowStatus]:
    """How windows look to their owner, from states as they were kept, by window; one that has none was never used."""
    empty = WindowState(0, 0, now_us)
    return [window_status(window, leak(window, states.get(window.id, empty), now_us), now_us) for window in windows]
