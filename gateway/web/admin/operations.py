"""The table of the admin API's operations: method, path, role, parameters, bodies and answers of each.

Its routes, the check of query parameters and the OpenAPI document are made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from gateway.config.sections import MAX_PERSON, NAME_PATTERN
from gateway.records import Ended
from gateway.reports.latency import MEASURED_CALLS
from gateway.store import HOURS_KEPT_DAYS, MEASURE_GROUPS, NARROWING_GROUPS
from gateway.web.openapi.operation import JSON, Operation, Schema, in_path, in_query, named

from . import request_bodies as bodies

MAX_ROWS = 1000
"""The maximum number of rows in one page; in a list of windows, the maximum number of keys whose windows are in one
page."""

PAGE_ROWS = 100
"""Rows of a page if the request names no `limit`."""

_PERIOD: Mapping[str, object] = {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}(T([01][0-9]|2[0-3]))?$"}
_SINCE = in_query(
    "since",
    "The first day (2026-11-20), or the first hour (2026-11-20T14, UTC); default: the oldest that is kept.",
    **_PERIOD,
)
_UNTIL = in_query("until", "The last day or hour, included.", **_PERIOD)
_LIMIT = {"type": "integer", "minimum": 1, "maximum": MAX_ROWS}
_ROWS = {"type": "string", "description": "The same rows, with a line of names before them."}
_PAGE = in_query("limit", "The most rows of a page.", **_LIMIT, default=PAGE_ROWS)
_FORMAT = in_query("format", "The format of the rows.", type="string", enum=["json", "csv"], default="json")
_FILTERS = (
    in_query("key", "Only those of the key with this id.", type="string"),
    in_query("team", "Only those of this team.", type="string"),
    in_query("model", "Only those for this model.", type="string"),
    in_query("status", "Only those with this status, such as 429 or 5xx.", type="string",
             pattern="^([0-9]{1,3}|[1-5]xx)$"),
    in_query("since", "Only those since: a time back from now (1d, 2h), a day or a moment.", type="string"),
    in_query("until", "Only those until then.", type="string"),
    in_query("id", "Only the one with this request id.", type="string"),
)  # fmt: skip
_ATTRIBUTION = (
    in_query("user", "Only those with this user, as the client named it.", type="string"),
    in_query("tag", "Only those with this tag: NAME:VALUE.", type="string", pattern="^[^:]+:.+$"),
)
OWN = in_query(
    "own", "For people with another role than member: only what is of their own keys, of every team.", type="string",
    enum=["true"],
)  # fmt: skip
OF_PERSON = in_query("person", "Only what is of the keys that this person has now.", type="string")
_ID = in_path("id", pattern=f"^{NAME_PATTERN}$")
_TEAM = in_path("name")
_PERSON = in_path("person", maxLength=MAX_PERSON)
_READING = (401, 429)
_CHANGING = (401, 403, 408, 409, 413, 429)


def _reading(summary: str, answer: str, *parameters: Mapping[str, object], more: tuple[int, ...] = ()) -> Operation:
    return Operation(summary, "viewer", {JSON: named(answer)}, (*_READING, *more), parameters=parameters)


def _change(
    summary: str,
    answer: str,
    *parameters: Mapping[str, object],
    body: type[bodies.RequestBody] | None = None,
    status: int = 200,
    is_body_needed: bool = True,
) -> Operation:
    answers: dict[str, Schema] = {JSON: named(answer)}
    errors = _CHANGING if status == 201 else (*_CHANGING, 404)
    return Operation(summary, "admin", answers, errors, body, parameters, status, is_body_needed)


KEYS, TEAMS, PEOPLE, ANY = "/admin/api/keys", "/admin/api/teams", "/admin/api/people", "/admin/api/quotas"

OWNERS: Mapping[str, tuple[tuple[Mapping[str, object], ...], str]] = {
    f"{KEYS}/{{id}}": ((_ID,), "a key"),
    f"{TEAMS}/{{name}}": ((_TEAM,), "a team"),
    f"{TEAMS}/{{name}}/members/{{person}}": ((_TEAM, _PERSON), "a person in a team"),
    f"{PEOPLE}/{{person}}": ((_PERSON,), "a person"),
    ANY: ((), "the whole gateway, or of the `scope`"),
}

ADMIN_OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("GET", "/admin/api/usage"): Operation(
        "Usage, summed by day or hour and grouped.", "viewer",
        {JSON: named("Usage"), "text/csv": _ROWS}, _READING,
        parameters=(
            in_query("group_by", "Names with commas between: key, team, model, upstream, endpoint, day, month, "
                     f"hour, user, tag:NAME, label:NAME, person. Sums of hours are kept for {HOURS_KEPT_DAYS} days.",
                     type="string", default="key"),
            _SINCE, _UNTIL,
            *[in_query(name, f"Only the usage of this {name}.", type="string") for name in NARROWING_GROUPS],
            in_query("limit", "The most rows of a page; default: all rows.", **_LIMIT),
            in_query("after", "Only rows behind this one: `next` of the page before.", type="string"),
            OF_PERSON, OWN, _FORMAT,
        ),
    ),
    ("GET", "/admin/api/latency"): Operation(
        "Percentiles of time to first token, tokens per second and duration, and failed attempts.", "viewer",
        {JSON: named("Latency"), "text/csv": _ROWS}, _READING,
        parameters=(
            in_query("group_by", f"Names with commas between: {', '.join(MEASURE_GROUPS)}.", type="string",
                     default="model"),
            _SINCE, _UNTIL,
            in_query("key", f"Only the calls of this key; measured are the newest {MEASURED_CALLS}.", type="string"),
            in_query("team", f"Only the calls of this team; measured are the newest {MEASURED_CALLS}.", type="string"),
            OF_PERSON, OWN, _FORMAT,
        ),
    ),
    ("GET", "/admin/api/calls"): Operation(
        "Usage records, the newest first.", "viewer", {JSON: named("Calls"), "text/csv": _ROWS}, _READING,
        parameters=(
            in_query("limit", f"The most rows of a page; default: {PAGE_ROWS} of JSON, all of CSV.", **_LIMIT),
            in_query("before", "Only records older than this one: `next` of the page before.", type="string"),
            *_FILTERS,
            in_query("upstream", "Only those that this upstream served.", type="string"),
            *_ATTRIBUTION,
            in_query("ended", "Only those that ended so.", type="string", enum=[*get_args(Ended)]),
            OF_PERSON, OWN, _FORMAT,
        ),
    ),
    ("GET", "/admin/api/refusals"): _reading(
        "Requests that the gateway refused, the newest first; 50,000 of 7 days are kept.", "Refusals", _PAGE,
        in_query("before", "Only those older than this one: `next` of the page before.", type="string"),
        *_FILTERS, *_ATTRIBUTION,
        in_query("code", "Only those with this error code, such as insufficient_quota.", type="string"),
        OF_PERSON, OWN,
    ),
    ("GET", "/admin/api/requests/{request}"): _reading(
        "The call or the refusal with this `x-request-id`.", "FoundRequest", in_path("request"), OWN, more=(404,)
    ),
    ("GET", "/admin/api/quotas"): _reading(
        "Every limit, and what is used of it.", "Quotas",
        in_query("limit", "The most keys whose windows are on a page; default: all windows. The first page has "
                          "the windows of the gateway and of teams, too.", **_LIMIT),
        in_query("after", "Only windows of keys behind this id: `next` of the page before.", type="string"),
        in_query("key", "Only those of the key with this id.", type="string"),
        in_query("binding", "With `key`: also those of its owner, its team and the gateway.", type="string",
                 enum=["true"]),
        in_query("team", "Only those of this team and its keys.", type="string"),
        OWN,
    ),
    ("GET", "/admin/api/upstreams"): _reading("How each upstream is doing, over all workers.", "Upstreams"),
    ("GET", "/admin/api/models"): _reading(
        "The served models: routes, prices and settings of each, as the configuration in use has them.",
        "ServedModels",
    ),
    ("GET", "/admin/api/reload"): Operation(
        "The changes of a reload, or the reasons to refuse it; nothing is applied.", "admin",
        {JSON: named("ReloadPreview")}, (401, 403, 429),
    ),
    ("POST", "/admin/api/reload"): _change("Read the configuration again, in all workers.", "Reload"),
    ("GET", "/admin/api/session"): _reading("Role of the presented token.", "Session"),
    ("GET", "/admin/api/live"): _reading("The counters of the whole gateway since it started.", "Live"),
    ("GET", KEYS): _reading(
        "Keys of the file and of the store, by id.", "IssuedKeys", _PAGE,
        in_query("after", "Only behind this id: `next` of the page before.", type="string"),
        in_query("team", "Only those of this team.", type="string"),
        OWN,
    ),
    ("POST", KEYS): _change("Make a key; its secret is returned once.", "NewKey", body=bodies.CreateKey, status=201),
    ("GET", f"{KEYS}/{{id}}"): _reading("One key.", "IssuedKey", _ID, more=(404,)),
    ("PATCH", f"{KEYS}/{{id}}"): _change("Replace settings of a key.", "IssuedKey", _ID, body=bodies.UpdateKey),
    ("DELETE", f"{KEYS}/{{id}}"): _change("Revoke a key, for ever.", "IssuedKey", _ID),
    ("POST", f"{KEYS}/{{id}}/rotate"): _change(
        "Replace the secret of a key; the answer shows the new one once.", "NewKey", _ID,
        body=bodies.RotateKey, is_body_needed=False,
    ),
    ("POST", f"{KEYS}/{{id}}/pause"): _change("Refuse a key until it is resumed.", "IssuedKey", _ID),
    ("POST", f"{KEYS}/{{id}}/resume"): _change("Let a paused key call again.", "IssuedKey", _ID),
    ("POST", f"{KEYS}/{{id}}/delete"): _change("Take away a key that was never used.", "KeyGone", _ID),
    ("GET", TEAMS): _reading(
        "Teams of the file and of the store, by name.", "Teams", _PAGE,
        in_query("after", "Only behind this name: `next` of the page before.", type="string"),
    ),
    ("POST", TEAMS): _change("Make a team.", "Team", body=bodies.CreateTeam, status=201),
    ("GET", f"{TEAMS}/{{name}}"): _reading("One team.", "Team", _TEAM, more=(404,)),
    ("PATCH", f"{TEAMS}/{{name}}"): _change("Replace the quotas of a team.", "Team", _TEAM, body=bodies.UpdateTeam),
    ("DELETE", f"{TEAMS}/{{name}}"): _change("Take away a team to which no key belongs.", "TeamGone", _TEAM),
    **{
        ("POST", f"{path}/reset"): _change(
            f"Count nothing as used in windows of {OWNERS[path][1]}, at present.", "Windows", *OWNERS[path][0],
            body=bodies.ResetAnyQuotas if path == ANY else bodies.ResetQuotas, is_body_needed=False,
        )
        for path in OWNERS
    },
    **{
        ("POST", f"{path}/top_up"): _change(
            f"Let more be spent in a window of {OWNERS[path][1]}, for the running day, week or month.", "Windows",
            *OWNERS[path][0], body=bodies.GrantAnyTopUp if path == ANY else bodies.GrantTopUp,
        )
        for path in OWNERS
    },
    ("GET", "/admin/api/audit"): Operation(
        "Changes with their author, newest first.", "admin", {JSON: named("Changes")}, (401, 403, 429),
        parameters=(
            _PAGE, in_query("before", "Only those before this entry: `next` of the page before.",
                            type="string"),
        ),
    ),
}  # fmt: skip
"""Operations of the admin API by method and path."""
