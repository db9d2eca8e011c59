"""The embedded store's tables: their columns, and writing rows into them."""

from __future__ import annotations

from gateway.quota.ledger_entry import SUMS

SCHEMA_VERSION = 3

FIRST_SCHEMA = 1
"""The schema of gateway 0.1.0. Schema 2 was in no release."""

# A window's row has its state only: the limit comes with each call. `entry` is a call in the form of
# quota/ledger_entry.py.
# `lost` has the leases that were closed as lost, and the positions of their records.
TABLES = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE workers (
    worker TEXT PRIMARY KEY, seq INTEGER NOT NULL, mark INTEGER NOT NULL, alive_us INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE windows (
    id TEXT PRIMARY KEY, starts TEXT NOT NULL, used INTEGER NOT NULL, reserved INTEGER NOT NULL,
    at_us INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE leases (
    id TEXT PRIMARY KEY, worker TEXT NOT NULL, drawn_us INTEGER NOT NULL, entry TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE lost (
    id TEXT PRIMARY KEY, worker TEXT NOT NULL, drawn_us INTEGER NOT NULL, entry TEXT NOT NULL,
    record INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE records (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL, time REAL NOT NULL, key TEXT NOT NULL, team TEXT, endpoint TEXT NOT NULL, model TEXT NOT NULL,
    label_model TEXT NOT NULL, routed_model TEXT NOT NULL, returned_model TEXT, upstream TEXT NOT NULL,
    status INTEGER NOT NULL, stream INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, reasoning_tokens INTEGER NOT NULL,
    usage_source TEXT NOT NULL, ended TEXT NOT NULL, first_byte_s REAL, duration_s REAL NOT NULL,
    attempts INTEGER NOT NULL, truncated INTEGER NOT NULL, client_request_id TEXT, cost_nusd INTEGER,
    price TEXT, more TEXT NOT NULL DEFAULT '', failed TEXT NOT NULL DEFAULT '',
    user TEXT NOT NULL DEFAULT '', tags TEXT NOT NULL DEFAULT '', timeline TEXT NOT NULL DEFAULT '',
    model_reason TEXT NOT NULL DEFAULT '', amended TEXT NOT NULL DEFAULT '');
CREATE INDEX records_by_key ON records (key, seq);
CREATE TABLE sums (
    day TEXT, key TEXT, team TEXT, model TEXT, upstream TEXT, endpoint TEXT,
    {", ".join(f"{name} INTEGER NOT NULL" for name in SUMS)},
    PRIMARY KEY (day, key, team, model, upstream, endpoint)) WITHOUT ROWID;
"""

ADDED = {
    "records": {"price": "TEXT", "more": "TEXT NOT NULL DEFAULT ''", "failed": "TEXT NOT NULL DEFAULT ''",
        "user": "TEXT NOT NULL DEFAULT ''", "tags": "TEXT NOT NULL DEFAULT ''", "timeline": "TEXT NOT NULL DEFAULT ''",
        "model_reason": "TEXT NOT NULL DEFAULT ''", "amended": "TEXT NOT NULL DEFAULT ''",
    },
    **{table: {"since_us": "INTEGER NOT NULL DEFAULT 0"} for table in ("claims", "posts")},
}  # fmt: skip
"""Columns that files of this schema may lack: they are added when such a file is opened. A gateway without them works
beside one with them, because every statement names its columns."""

LATER = (
    """
CREATE TABLE IF NOT EXISTS claims (
    name TEXT PRIMARY KEY, holder TEXT NOT NULL, until_us INTEGER NOT NULL,
    since_us INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID""",
    """
CREATE TABLE IF NOT EXISTS posts (
    place TEXT, holder TEXT, text TEXT NOT NULL, until_us INTEGER NOT NULL,
    since_us INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (place, holder)) WITHOUT ROWID""",
    """
CREATE TABLE IF NOT EXISTS documents (
    kind TEXT, name TEXT, text TEXT NOT NULL, PRIMARY KEY (kind, name)) WITHOUT ROWID""",
    """
CREATE TABLE IF NOT EXISTS secrets (digest TEXT PRIMARY KEY, key TEXT NOT NULL) WITHOUT ROWID""",
    """
CREATE TABLE IF NOT EXISTS audit (
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, text TEXT NOT NULL)""",
    """
CREATE TABLE IF NOT EXISTS refusals (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL, time REAL NOT NULL, text TEXT NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS refusals_by_id ON refusals (id)",
    f"""
CREATE TABLE IF NOT EXISTS hours (
    hour TEXT, key TEXT, team TEXT, model TEXT, upstream TEXT, endpoint TEXT,
    {", ".join(f"{name} INTEGER NOT NULL" for name in SUMS)},
    PRIMARY KEY (hour, key, team, model, upstream, endpoint)) WITHOUT ROWID""",
    """
CREATE TABLE IF NOT EXISTS bonds (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, key TEXT NOT NULL, until REAL NOT NULL, text TEXT NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS bonds_by_key ON bonds (key, seq)",
    "CREATE INDEX IF NOT EXISTS bonds_by_until ON bonds (until)",
    f"""
CREATE TABLE IF NOT EXISTS attributed (
    day TEXT, key TEXT, name TEXT, value TEXT, team TEXT, model TEXT,
    {", ".join(f"{name} INTEGER NOT NULL" for name in SUMS)},
    PRIMARY KEY (day, key, name, value, team, model)) WITHOUT ROWID""",
    """
CREATE TABLE IF NOT EXISTS measures (
    period TEXT, model TEXT, upstream TEXT, counter INTEGER, number INTEGER NOT NULL,
    PRIMARY KEY (period, model, upstream, counter)) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS deferred (lease TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS lost_by_worker ON lost (worker)",
    "CREATE TABLE IF NOT EXISTS late (day TEXT PRIMARY KEY, changes INTEGER NOT NULL) WITHOUT ROWID",
)
"""Tables that files of this schema may lack, too."""

CLAIM = ("name", "holder", "until_us", "since_us")

_SET_SPAN = "until_us = excluded.until_us, since_us = excluded.since_us"

SET_CLAIM = f"ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, {_SET_SPAN}"

POST = ("place", "holder", "text", "until_us", "since_us")

SET_POST = f"ON CONFLICT (place, holder) DO UPDATE SET text = excluded.text, {_SET_SPAN}"

DOCUMENT = ("kind", "name", "text")

SET_DOCUMENT = "ON CONFLICT (kind, name) DO UPDATE SET text = excluded.text"

SECRET = ("digest", "key")

DEFERRED = ("lease", "text")

SET_DEFERRED = "ON CONFLICT (lease) DO UPDATE SET text = excluded.text"

REFUSAL = ("id", "time", "text")

AUDIT = ("kind", "name", "text")

WORKER = ("worker", "seq", "mark", "alive_us")

SET_WORKER = "ON CONFLICT (worker) DO UPDATE SET seq = excluded.seq, mark = excluded.mark, alive_us = excluded.alive_us"

WINDOW = ("id", "starts", "used", "reserved", "at_us")

SET_WINDOW = "ON CONFLICT (id) DO UPDATE SET used = excluded.used, reserved = excluded.reserved, at_us = excluded.at_us"

LEASE = ("id", "worker", "drawn_us", "entry")

LOST = (*LEASE, "record")

RECORD = (
    "id", "time", "key", "team", "endpoint", "model", "label_model", "routed_model", "returned_model", "upstream",
    "status", "stream", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "usage_source",
    "ended", "first_byte_s", "duration_s", "attempts", "truncated", "client_request_id", "cost_nusd", "price",
    "failed", "user", "tags", "timeline", "model_reason", "amended", "more",
)  # fmt: skip

LATE = ("day", "changes")
"""How often the sums of a day were changed after it was over."""

ADD_LATE = "ON CONFLICT (day) DO UPDATE SET changes = changes + 1"

SUM_GROUP = ("day", "key", "team", "model", "upstream", "endpoint")

MEASURE = ("period", "model", "upstream", "counter", "number")
"""`period`: a day or an hour. `counter`: of quota/measures.py."""

ADD_MEASURE = "ON CONFLICT (period, model, upstream, counter) DO UPDATE SET number = number + excluded.number"

HOUR_GROUP = ("hour", *SUM_GROUP[1:])

_ADDED_SUMS = ", ".join(f"{name} = {name} + excluded.{name}" for name in SUMS)

ADD_SUMS = f"ON CONFLICT ({', '.join(SUM_GROUP)}) DO UPDATE SET {_ADDED_SUMS}"

ATTRIBUTED_GROUP = ("day", "key", "name", "value", "team", "model")

ADD_ATTRIBUTED = f"ON CONFLICT ({', '.join(ATTRIBUTED_GROUP)}) DO UPDATE SET {_ADDED_SUMS}"

ADD_HOURS = f"ON CONFLICT ({', '.join(HOUR_GROUP)}) DO UPDATE SET {_ADDED_SUMS}"
