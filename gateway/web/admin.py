"""The admin API: what was used, by whom."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from datetime import date
from typing import Any

from aiohttp import web
from pydantic import SecretStr

from gateway.errors import InvalidRequest, Unavailable
from gateway.store import USAGE_COLUMNS, USAGE_GROUPS, Ledger, StoreAway, check_groups

from .ops import check_token
from .responses import Whole, json_response


class Admin:
    """The endpoints behind the admin token."""

    def __init__(self, ledger: Ledger, token: SecretStr) -> None:
        self._ledger = ledger
        self._token = token

    def routes(self) -> list[web.RouteDef]:
        """Every route."""
        return [
            web.get("/admin/api/usage", self.show_usage),
            web.get("/admin/api/calls", self.list_calls),
        ]

    async def show_usage(self, request: web.Request) -> web.StreamResponse:
        """Daily sums: `group_by=key,model,day&since=2026-11-01&until=2026-11-30&limit=10&format=json|csv`."""
        check_token(request, self._token)
        query = request.query
        groups = [name for name in dict.fromkeys(query.get("group_by", "key").split(",")) if name]
        if unknown := check_groups(groups):
            raise _bad("group_by", f"{unknown[0]!r} is not one of {', '.join(USAGE_GROUPS)}")
        for name in ("since", "until"):
            if name in query and not _is_day(query[name]):
                raise _bad(name, "expected a day such as 2026-11-20")
        shape = query.get("format", "json")
        if shape not in ("json", "csv"):
            raise _bad("format", "expected json or csv")
        try:
            rows = await self._ledger.usage(groups, query.get("since"), query.get("until"), _limit(query.get("limit")))
        except StoreAway:
            raise _away() from None
        if shape == "csv":
            return Whole(200, [("Content-Type", "text/csv; charset=utf-8")], _csv(groups, rows))
        return json_response(json.dumps({"data": rows}).encode())

    async def list_calls(self, request: web.Request) -> web.StreamResponse:
        """The newest usage records: `limit=100&key=ID`."""
        check_token(request, self._token)
        limit = _limit(request.query.get("limit")) or 100
        try:
            calls = await self._ledger.calls(limit, request.query.get("key"))
        except StoreAway:
            raise _away() from None
        return json_response(json.dumps({"data": [_shown(call) for call in calls]}).encode())


def _shown(call: Mapping[str, Any]) -> dict[str, Any]:
    """A usage record in the words of the reports."""
    shown = {name: value for name, value in call.items() if name not in ("usage", "label_model")}
    tokens = {name: value for name, value in call["usage"].items() if name != "source"}
    return {
        **shown,
        **tokens,
        "usage_source": call["usage"]["source"],
        "cost_usd": None,
        "client_gone": call["ended"] == "client_gone",
    }


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _limit(text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        raise _bad("limit", "expected a number from 1")
    return int(text)


def _bad(name: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{name}': {what}.", param=name)


def _away() -> Unavailable:
    return Unavailable("The store does not answer.", code="store_unavailable")


def _csv(groups: list[str], rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*groups, *USAGE_COLUMNS])
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
