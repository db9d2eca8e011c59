"""Budgets and rates of LiteLLM as quotas: those of its file, of keys, of teams and of its table of budgets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

PERIODS: Mapping[str, str] = {
    "1d": "day", "24h": "day", "daily": "day", "7d": "week", "1w": "week", "weekly": "week", "30d": "month",
    "1mo": "month", "monthly": "month", "1h": "hour", "60m": "hour", "hourly": "hour", "1m": "minute", "60s": "minute",
}  # fmt: skip
"""Periods of quotas by `budget_duration`."""

SECONDS: Mapping[str, int] = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
"""Units of a duration (LiteLLM, `litellm_core_utils/duration_parser.py`)."""

CALENDAR = ("day", "week", "month")


def number_of(value: Any) -> Decimal | None:
    """A number, which a CSV file has as text; None: it is none."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        found = Decimal(str(value))
    except InvalidOperation:
        return None
    return found if found.is_finite() else None


def seconds_of(duration: Any) -> int | None:
    """The seconds of a duration such as `30d`; None: it is none, or one of months."""
    found = re.fullmatch(r"(\d+)([smhdw])", str(duration).strip())
    return int(found[1]) * SECONDS[found[2]] if found else None


def plain(number: Decimal) -> int | float:
    """The number as YAML has it."""
    return int(number) if number == int(number) else float(number)


def budget_of(amount: Any, duration: Any, **more: Any) -> tuple[dict[str, Any] | None, str]:
    """The quota of a budget, and a note about it. None: it limits nothing, or nothing here can express it."""
    usd = number_of(amount)
    if usd is None:
        return None, ""
    if usd <= 0:
        return None, "a budget of 0 is no quota here: pause the key instead"
    usd = max(round(usd, 9), Decimal("0.000000001"))
    text = str(duration).strip().lower() if duration not in (None, "") else ""
    if not text:
        never = "is never reset by LiteLLM, and per month here, by the calendar in UTC"
        return {"usd": plain(usd), "per": "month", **more}, never
    if months := re.fullmatch(r"(\d+)mo", text):
        share = round(usd / max(1, int(months[1])), 9)
        return {"usd": plain(share), "per": "month", **more}, "is per month here, by the calendar in UTC"
    per: str | int | None = PERIODS.get(text) or seconds_of(text)
    if per is None:
        return {"usd": plain(usd), "per": "month", **more}, "has another form, and is per month here"
    how = "by the calendar in UTC" if per in CALENDAR else "and refills smoothly"
    named = per if isinstance(per, str) else f"{per} s"
    return {"usd": plain(usd), "per": per, **more}, f"is per {named} here, {how}"


def rates_of(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The quotas of `rpm_limit`, `tpm_limit` and `tpd_limit`."""
    for name, unit, per in (
        ("rpm_limit", "requests", "minute"), ("tpm_limit", "tokens", "minute"), ("tpd_limit", "tokens", "day"),
    ):  # fmt: skip
        number = number_of(row.get(name))
        if number is not None and number >= 1:
            yield {unit: int(number), "per": per}


def model_budgets_of(row: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """The quotas of single models, each with a note: `model_max_budget`, which has by model an amount, or an amount and
    a period, and the rates by model in `metadata`."""
    for model, given in _document(row, "model_max_budget").items():
        rule = given if isinstance(given, dict) else {"max_budget": given}
        amount = rule.get("max_budget", rule.get("budget_limit"))
        quota, note = budget_of(amount, rule.get("budget_duration", rule.get("time_period")), model=str(model))
        if quota is not None:
            yield quota, note
    metadata = _document(row, "metadata")
    for name, unit in (("model_rpm_limit", "requests"), ("model_tpm_limit", "tokens")):
        for model, given in _document(metadata, name).items():
            if (number := number_of(given)) is not None and number >= 1:
                yield {unit: int(number), "per": "minute", "model": str(model)}, ""


def _document(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = row.get(name)
    return found if isinstance(found, dict) else {}
