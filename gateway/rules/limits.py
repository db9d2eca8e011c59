"""Which windows a call draws on, how much, and what a settlement gives back.

Three kinds of window, all in integer units:

- A *rate* (second, minute, hour, N seconds) is a bucket: `used` is its level, which leaks at limit/period. The whole
  limit may be spent at once after a rest. A level is kept, not the arrival time of a GCRA, because an arrival time
  would change its meaning when the limit changes.
- A *calendar* window (day, month, UTC) keeps `used` (settled) and `reserved` (drawn, still running) apart, so that
  "spent" and "somebody else's reservation is in the way" can be told apart.
- *Parallel* calls: `used` counts the open leases.

A draw takes the estimate; a settlement replaces it by the truth. On a rate it may give back at most what of this draw
has not leaked away meanwhile: a full refund after a long stream would admit two bursts.

The stores apply these functions (or, in Redis, the same arithmetic as a script); nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from gateway.config import Config, Quota
from gateway.errors import InvalidRequest
from gateway.records import Call, Claim, Key, Params, Record, Refused, Standing, Unit, WindowState

COMPLETIONS_DEFAULT_OUTPUT = 16
"""OpenAI's default of max_tokens on /v1/completions (openai-openapi, CreateCompletionRequest)."""

IN_THE_WAY_US = 1_000_000
"""How long to wait for running calls to end. Nobody knows; a second is polite and soon enough."""

_OUTPUT_PARAM: Mapping[str, str] = {"completions": "max_tokens", "chat": "max_completion_tokens", "embeddings": "input"}


# ------------------------------------------------------------------------------------------------ what a call claims


def output_limit(call: Call) -> int:
    """Tokens that one candidate of this call may have, as far as anybody said."""
    params = call.params
    if params.output_limit is not None:
        return params.output_limit
    if call.endpoint == "completions":
        return COMPLETIONS_DEFAULT_OUTPUT
    return 0 if call.endpoint == "embeddings" else call.model.max_output_tokens or 0


def claims(call: Call, config: Config) -> tuple[Claim, ...]:
    """Everything the call draws on. Raises `InvalidRequest` where it could never fit, however long it waits."""
    output = output_limit(call) * call.params.candidates
    sure = output + (call.params.prompt_tokens if call.params.is_prompt_exact else 0)
    drawn: list[Claim] = []
    for scope, quota, is_enforced in quotas_of(call.key, config):
        if not quota.covers(call.params.model):
            continue
        amount = 1
        if quota.unit == "tokens":
            if sure > quota.limit and is_enforced:
                raise _never_fits(call, scope, quota, sure)
            # The prompt is an estimate: it alone must not make a refusal that no wait can end.
            amount = min(output + call.params.prompt_tokens, max(quota.limit, sure))
        drawn.append(claim_on(scope, quota, amount, call.started, is_enforced))
    if call.key.max_parallel is not None:
        drawn.append(parallel_claim(call.key, 1))
    return tuple(drawn)


def quotas_of(key: Key, config: Config) -> Iterator[tuple[str, Quota, bool]]:
    """Every quota that binds this key: (scope, quota, whether it may refuse)."""
    for quota in key.quotas:
        yield f"key:{key.id}", quota, not key.is_shadow
    if key.team is not None and (team := config.teams.get(key.team)) is not None:
        for quota in team.quotas:
            yield f"team:{key.team}", quota, not key.is_shadow
    for quota in config.quotas:
        yield "gateway", quota, not key.is_shadow


def counts_tokens(key: Key, config: Config, model: str) -> bool:
    """Whether a token quota applies, so that a chat call needs an output limit."""
    return any(quota.unit == "tokens" and quota.covers(model) for _, quota, _ in quotas_of(key, config))


def claim_on(scope: str, quota: Quota, amount: int, started: float, is_enforced: bool = True) -> Claim:
    """A claim on the window of this quota in which a call that began at Unix time `started` (seconds) belongs."""
    seconds = quota.per_s
    starts, resets_us = "", 0
    if seconds is None:
        starts, resets_us = calendar_window(str(quota.per), started)
    return Claim(
        scope=scope,
        unit=quota.unit,
        per=str(quota.per),
        model=quota.model,
        limit=quota.limit,
        amount=amount,
        period_us=(seconds or 0) * 1_000_000,
        starts=starts,
        resets_us=resets_us,
        is_enforced=is_enforced,
    )


def parallel_claim(key: Key, amount: int) -> Claim:
    """The claim on the key's calls under way at once."""
    return Claim(f"key:{key.id}", "parallel", "", None, key.max_parallel or 0, amount, is_enforced=not key.is_shadow)


def calendar_window(per: str, now: float) -> tuple[str, int]:
    """The UTC day or month of a Unix time in seconds: its name, and its end in Unix microseconds."""
    return _window_of_day(per, int(now // 86400))


@lru_cache(maxsize=16)
def _window_of_day(per: str, number: int) -> tuple[str, int]:
    """By the day's number since 1970. Kept, because every call of a day asks the same, and calendars are slow."""
    day = datetime.fromtimestamp(number * 86400, UTC)
    if per == "day":
        return day.strftime("%Y-%m-%d"), int((day + timedelta(days=1)).timestamp()) * 1_000_000
    first = (day.replace(day=28) + timedelta(days=4)).replace(day=1)
    return day.strftime("%Y-%m"), int(first.timestamp()) * 1_000_000


def _never_fits(call: Call, scope: str, quota: Quota, sure: int) -> InvalidRequest:
    params: Params = call.params
    name = _OUTPUT_PARAM[call.endpoint]
    if "max_tokens" in params.document.members and call.endpoint == "chat":
        name = "max_tokens"
    if params.is_prompt_exact and params.prompt_tokens > quota.limit:
        name = "input" if call.endpoint == "embeddings" else "prompt"  # no smaller output would make it fit
    what = f"up to {sure} tokens ({output_limit(call)} for each of {params.candidates} outputs)"
    if params.is_prompt_exact:
        what = f"up to {sure} tokens, its prompt of {params.prompt_tokens} included"
    return InvalidRequest(
        f"This request may use {what}, more than the whole quota of {quota.limit} tokens per {spell_per(quota.per)} of "
        f"{spell_scope(scope)}. Waiting would not help: ask for fewer tokens with '{name}'.",
        param=name,
        code="quota_too_small",
    )


def spell_scope(scope: str) -> str:
    """A window's owner in the words of a message to its user."""
    kind, _, name = scope.partition(":")
    return {"key": "your key", "team": f"your team {name}"}.get(kind, "the whole gateway")


def spell_per(per: str | int) -> str:
    """A window's length in words."""
    return f"{per} seconds" if str(per).isdigit() else str(per)


# ------------------------------------------------------------------------------------------- what a store applies


def leaked(claim: Claim, state: WindowState, now_us: int) -> WindowState:
    """The state at `now_us`. Whole units leak; `at_us` keeps the rest of one, so that looking often costs nothing."""
    if not claim.period_us or now_us <= state.at_us:
        return state
    units, rest = divmod((now_us - state.at_us) * claim.limit, claim.period_us)
    if units >= state.used:
        return WindowState(0, state.reserved, now_us)
    # Rounded so that the window is never ahead of its rate.
    return WindowState(state.used - units, state.reserved, now_us - rest // claim.limit)


def shortage(claim: Claim, state: WindowState, now_us: int) -> Refused | None:
    """Why this claim does not fit the (leaked) state, or None where it does."""
    if state.used + state.reserved + claim.amount <= claim.limit or not claim.is_enforced:
        return None
    retry_after_us: int | None = IN_THE_WAY_US
    if claim.period_us:
        missing = state.used + claim.amount - claim.limit
        retry_after_us = state.at_us + -(-missing * claim.period_us // claim.limit) - now_us
    elif claim.unit != "parallel" and state.used + claim.amount > claim.limit:
        retry_after_us = None
    return Refused(standing(claim, state, now_us), retry_after_us)


def worse(one: Refused | None, other: Refused) -> Refused:
    """Of two refusals, the one that lasts longer."""
    if one is None:
        return other

    def lasts(refused: Refused) -> tuple[bool, int]:
        wait = refused.retry_after_us
        return (True, refused.standing.reset_us) if wait is None else (False, wait)

    return max(one, other, key=lasts)


def drawn(claim: Claim, state: WindowState) -> WindowState:
    """The (leaked) state after a draw."""
    if claim.starts:
        return WindowState(state.used, state.reserved + claim.amount, state.at_us)
    return WindowState(state.used + claim.amount, state.reserved, state.at_us)


def settled(claim: Claim, state: WindowState, actual: int, age_us: int) -> WindowState:
    """The (leaked) state after a draw of this age turned out to be `actual` units."""
    if claim.starts:
        return WindowState(state.used + actual, max(0, state.reserved - claim.amount), state.at_us)
    if not claim.period_us:
        return WindowState(max(0, state.used - claim.amount), state.reserved, state.at_us)
    if actual >= claim.amount:
        return WindowState(state.used + actual - claim.amount, state.reserved, state.at_us)
    gone = max(0, age_us) * claim.limit // claim.period_us
    give_back = max(0, claim.amount - actual - gone)
    return WindowState(max(0, state.used - give_back), state.reserved, state.at_us)


def actual_units(unit: Unit, record: Record) -> int:
    """What a finished call used of one unit."""
    return {"requests": 1, "tokens": record.usage.total_tokens, "parallel": 0}[unit]


def standing(claim: Claim, state: WindowState, now_us: int) -> Standing:
    """How a (leaked) state looks to its owner."""
    reset_us = max(0, claim.resets_us - now_us)
    if claim.period_us:
        reset_us = max(0, state.at_us + -(-state.used * claim.period_us // claim.limit) - now_us) if state.used else 0
    return Standing(claim, state.used, state.reserved, reset_us)
