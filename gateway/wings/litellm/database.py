"""Keys and teams out of rows of LiteLLM's database, so that users keep their keys.

The tables are those of `proxy/schema.prisma` of LiteLLM 1.110.2: `LiteLLM_VerificationToken`, `LiteLLM_TeamTable`,
`LiteLLM_BudgetTable` and `LiteLLM_UserTable`. The column `token` has SHA-256 of the key in hex (`hash_token` in its
`proxy/utils.py`), which is `keys[].sha256` here. Rows are JSON (a list of them, or lists by table) or CSV with names
of columns, as `psql` writes them.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from gateway import untrusted_json
from gateway.config.faults import ConfigError, ConfigFault, printable

from .budgets import budget_of, model_budgets_of, number_of, rates_of
from .given import Converted

Row = Mapping[str, Any]
Tables = dict[str, list[Row]]

KEYS, TEAMS, BUDGETS, USERS = (
    "LiteLLM_VerificationToken", "LiteLLM_TeamTable", "LiteLLM_BudgetTable", "LiteLLM_UserTable",
)  # fmt: skip
BY_COLUMN: Sequence[tuple[str, str]] = (
    ("token", KEYS), ("team_alias", TEAMS), ("user_email", USERS), ("user_role", USERS), ("budget_id", BUDGETS),
    ("team_id", TEAMS), ("user_id", USERS),
)  # fmt: skip
"""The table of rows without a name, by the first of these columns that they have."""

LISTS = frozenset({"models", "teams", "members", "allowed_models"})
DOCUMENTS = frozenset({"metadata", "model_max_budget", "aliases"})

OF_SESSIONS = "litellm-dashboard"
"""The team of the keys of sessions of LiteLLM's page (`UI_SESSION_TOKEN_TEAM_ID` in its `constants.py`)."""
EVERY_MODEL, OF_TEAM, NO_MODEL = "all-proxy-models", "all-team-models", "no-default-models"
"""Names in place of models (`SpecialModelNames` in its `proxy/_types.py`)."""

ZERO_REFUSES = ("max_budget", "rpm_limit", "tpm_limit", "tpd_limit", "max_parallel_requests")
"""Limits that admit no call where they are 0; a key without a limit would admit every call."""


def read_rows(text: str, file: str) -> Tables:
    """The rows of a file by table. Raises `ConfigError`."""
    try:
        found = untrusted_json.parse(text)
    except ValueError:
        found = _csv_rows(text)
    tables: Tables = {}
    if isinstance(found, dict) and all(isinstance(each, list) for each in found.values()):
        named = [(str(name).strip('"').rpartition(".")[2], row) for name, rows in found.items() for row in rows]
    elif isinstance(found, list):
        named = [("", row) for row in found]
    else:
        raise ConfigError([ConfigFault("", "expected rows of LiteLLM's tables as JSON or as CSV with a header", file)])
    for name, row in named:
        table = name or next((table for column, table in BY_COLUMN if isinstance(row, dict) and column in row), "")
        if isinstance(row, dict):
            tables.setdefault(table, []).append({str(column): _read(column, value) for column, value in row.items()})
    return tables


def _csv_rows(text: str) -> list[Any] | None:
    """Rows with a header that names a column of the tables; None: the text has none."""
    try:
        rows: list[Any] = [*csv.DictReader(io.StringIO(text))]
    except csv.Error:  # a field above 128 KiB, as a line of JSON that was cut off
        return None
    return rows if rows and any(name in rows[0] for name, _ in BY_COLUMN) else None


def _read(column: Any, value: Any) -> Any:
    """A value of a row; CSV has lists and documents as text, and nothing as an empty text."""
    if not isinstance(value, str):
        return value
    if column in LISTS and value.startswith("{") and value.endswith("}"):
        return [each.strip('"') for each in next(csv.reader([value[1:-1]]), []) if each]
    if column in LISTS or column in DOCUMENTS:
        try:
            return untrusted_json.parse(value)
        except ValueError:
            return None
    return None if value == "" else value


def add_rows(done: Converted, tables: Tables, now: datetime) -> None:
    """Write `teams` and `keys` into the result, and a note for each row and column that is not in them."""
    _Database(done, tables, now).convert()


class _Database:
    def __init__(self, done: Converted, tables: Tables, now: datetime) -> None:
        self._done = done
        self._tables = tables
        self._now = now
        self._teams = {str(row.get("team_id")): row for row in tables.get(TEAMS, [])}
        self._budgets = {str(row.get("budget_id")): row for row in tables.get(BUDGETS, [])}
        self._users = {str(row.get("user_id")): row for row in tables.get(USERS, [])}
        self._team_names: dict[str, str] = {}
        self._ids: set[str] = set()

    def convert(self) -> None:
        teams = {}
        for team_id, row in self._teams.items():
            name = self._named(str(row.get("team_alias") or team_id), set(self._team_names.values()))
            self._team_names[team_id] = name
            teams[name] = self._team(f"teams.{name}", row)
        if teams:
            self._done.values["teams"] = teams
        keys = [found for row in self._tables.get(KEYS, []) if (found := self._key(row)) is not None]
        if keys:
            self._done.values["keys"] = keys
        people = {
            _owner(user_id, row): {"quotas": quotas}
            for user_id, row in self._users.items()
            if (quotas := self._quotas(f"{USERS}.{printable(user_id)}", row))
        }
        if people:
            self._done.values.setdefault("people", {}).update(people)
        for table in self._tables.keys() - {KEYS, TEAMS, BUDGETS, USERS}:
            self._note(table or "a row", "is none of the tables that are read")

    def _note(self, place: str, why: str) -> None:
        self._done.notes.append(ConfigFault(place, why))

    def _named(self, text: str, taken: set[str]) -> str:
        """A name as keys and teams have it here, used once."""
        plain = re.sub(r"[^a-z0-9_.-]+", "-", text.lower()).strip("-_.")[:50] or "unnamed"
        number, found = 2, plain
        while found in taken or found == "other":
            found, number = f"{plain}-{number}", number + 1
        return found

    def _team(self, place: str, row: Row) -> dict[str, Any]:
        quotas = self._quotas(place, row)
        if number_of(row.get("max_parallel_requests")) is not None:
            self._note(place, "max_parallel_requests: a team has no such limit; see keys[].max_parallel")
        return {"quotas": quotas} if quotas else {}

    def _key(self, row: Row) -> dict[str, Any] | None:
        token, team_id = str(row.get("token") or ""), str(row.get("team_id") or "")
        alias = str(row.get("key_alias") or f"key-{token[:8]}")
        place, expires = f"{KEYS}.{printable(alias)}", _moment(row.get("expires"))
        models = self._models(row, team_id)
        if team_id == OF_SESSIONS:
            return None
        if (why := self._refusal(row, token, team_id, models)) is not None:
            self._note(place, why)
            return None
        key_id = self._named(alias, self._ids)
        self._ids.add(key_id)
        if key_id != alias:
            self._note(place, f"has the id {key_id} here")
        found: dict[str, Any] = {"id": key_id, "sha256": token}
        if team_id in self._team_names:
            found["team"] = self._team_names[team_id]
        elif team_id:
            self._note(place, f"is of team {printable(team_id)}, whose row is not there: it has no team here")
        if models != ["*"]:
            found["models"] = models
        if expires is not None:
            found["expires"] = expires.isoformat()
        if (parallel := number_of(row.get("max_parallel_requests"))) is not None and parallel >= 1:
            found["max_parallel"] = int(parallel)
        if row.get("user_id"):
            found["owner"] = _owner(row["user_id"], self._users.get(str(row["user_id"]), {}))
        if quotas := self._quotas(place, row):
            found["quotas"] = quotas
        return found

    def _refusal(self, row: Row, token: str, team_id: str, models: Sequence[str]) -> str | None:
        """The reason that a key is left out; None: it is not."""
        expires = _moment(row.get("expires"))
        if not re.fullmatch(r"[0-9a-f]{64}", token):
            return "its token is no SHA-256 in hex: give its owner a new key"
        if _is_true(row.get("blocked")) or _is_true(self._teams.get(team_id, {}).get("blocked")):
            return "is blocked, or its team is, and is left out"
        if expires is not None and expires <= self._now:
            return "has expired, and is left out"
        for of, one in (("its", row), ("its team's", self._teams.get(team_id, {}))):
            if (zero := self._zero(one)) is not None:
                return f"{of} {zero} is 0, with which LiteLLM refuses its calls: it is left out"
        return None if models else "may use no model, and is left out"

    def _models(self, row: Row, team_id: str) -> list[str]:
        """Patterns of models; a key without any has those of its team."""
        given = [str(each) for each in row.get("models") or []]
        of_team = [str(each) for each in self._teams.get(team_id, {}).get("models") or []]
        if EVERY_MODEL in of_team:
            of_team = []
        if not given or OF_TEAM in given or EVERY_MODEL in given:
            given = of_team
        elif of_team:  # LiteLLM asks both
            given = [
                *[each for each in given if any(fnmatchcase(each, pattern) for pattern in of_team)],
                *[each for each in of_team if any(fnmatchcase(each, pattern) for pattern in given)],
            ]
            given = list(dict.fromkeys(given)) or [NO_MODEL]
        if not given:
            return ["*"]
        return [each for each in given if each not in (OF_TEAM, NO_MODEL)]

    def _zero(self, row: Row) -> str | None:
        """The limit of a key or team, or of the budget that it names, that admits no call."""
        budget = self._budgets.get(str(row.get("budget_id") or ""), {})
        for name in ZERO_REFUSES:
            given = row.get(name) if row.get(name) is not None else budget.get(name)
            if (number := number_of(given)) is not None and number <= 0:
                return name
        return None

    def _quotas(self, place: str, row: Row) -> list[dict[str, Any]]:
        """Those of a key or team, else of the budget that it names."""
        budget = self._budgets.get(str(row.get("budget_id") or ""), {})
        merged = {**budget, **{name: value for name, value in row.items() if value not in (None, {}, [])}}
        quotas = []
        found, note = budget_of(merged.get("max_budget"), merged.get("budget_duration"))
        if note:
            self._note(place, f"max_budget: {note}")
        if found is not None:
            quotas.append(found)
        for quota, why in model_budgets_of(merged):
            if why:
                self._note(place, f"model_max_budget of {printable(quota['model'])}: {why}")
            quotas.append(quota)
        if number_of(merged.get("soft_budget")) is not None:
            self._note(place, "soft_budget: see alerts.webhook, which reports 80 % and 100 % of a quota")
        spent = number_of(row.get("spend"))
        if spent and found is not None:
            self._note(
                place,
                f"has spent {spent:.2f} USD, which is not taken over: its quota begins unused; move at the beginning "
                "of its period, or write what is left of it",
            )
        return [*quotas, *rates_of(merged)]


def _owner(user_id: Any, user: Row) -> str:
    return str(user.get("user_email") or user_id)


def _is_true(value: Any) -> bool:
    return value is True or str(value).lower() in ("t", "true", "1")


def _moment(value: Any) -> datetime | None:
    """A time of the database, which is in UTC. None: none."""
    if value in (None, ""):
        return None
    try:
        found = datetime.fromisoformat(str(value).replace(" +00", "+00:00").strip())
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
