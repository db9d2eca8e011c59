"""The embedded store's folder, for the one gateway that uses it; a file of gateway 0.1.0 (schema 1) is upgraded.

The upgrade is one transaction:

1. Records and daily sums are kept. 0.1.0 had no prices: their requests count as `unpriced`. Hourly sums, which it did
   not have, are made from the records of the last days.
2. Windows keep their ids, and so their use.
3. Leases that a killed gateway left are closed as lost, each charged its reservation.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from gateway.config import StoreSettings
from gateway.files import exclusive
from gateway.quota.ledger_entry import SUMS
from gateway.store import HOURS_KEPT_DAYS, StoreMisconfigured

from .database import Transaction, check_place, connect, create, describe_error, path_of, schema_of
from .schema import ADD_HOURS, ADD_SUMS, FIRST_SCHEMA, LATER, RECORD, SCHEMA_VERSION, TABLES

log = logging.getLogger("gateway")

_USAGE = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
_PATHS = {**{name: f"$.usage.{name}" for name in _USAGE}, "usage_source": "$.usage.source"}
_KEPT = RECORD[: RECORD.index("cost_nusd")]
"""The columns that 0.1.0 knew, as members of the JSON of a record."""

_OLD = ("windows", "leases", "records", "sums")


def _records_of(table: str, column: str, path: str = "$") -> str:
    """Records of a table that has them as JSON in a column, in the columns of today."""
    values = ", ".join(
        f"json_extract({column}, '{_PATHS.get(name, f'$.{name}').replace('$', path, 1)}')" for name in _KEPT
    )
    return f"INSERT INTO records ({', '.join(_KEPT)}) SELECT {values} FROM {table}"  # noqa: S608 - constants only


def _sums_of(period: str, table: str, where: str, conflict: str) -> str:
    """Sums of records by a period, in the form of strftime, into a table."""
    known = {
        "requests": "count(*)",
        "errors": "sum(ended = 'error')",
        "estimated_tokens": "sum((usage_source = 'estimated') * (prompt_tokens + completion_tokens))",
        "cost_nusd": "0",
        "unpriced": "count(*)",
    }
    sums = ", ".join(known.get(name, f"sum({name})") for name in SUMS)
    group = f"strftime('{period}', time, 'unixepoch'), key, coalesce(team, ''), label_model, upstream, endpoint"
    chosen = f"SELECT {group}, {sums} FROM records WHERE {where} GROUP BY 1, 2, 3, 4, 5, 6"  # noqa: S608 - constants only
    return f"INSERT INTO {table} {chosen} {conflict}"


_STEPS = (
    "DROP INDEX records_by_key",
    *(f"ALTER TABLE {name} RENAME TO old_{name}" for name in _OLD),
    *TABLES.partition(";")[2].split(";"),  # all but `meta`, which is the same
    *LATER,
    _records_of("(SELECT record FROM old_records ORDER BY seq)", "record"),
    # A window's id ends with its period, behind the last bar.
    """
INSERT INTO windows SELECT id, substr(id, length(rtrim(id, replace(id, '|', ''))) + 1),
    CASE WHEN id LIKE '%|parallel|||' THEN 0 ELSE used + reserved END, 0, at_us FROM old_windows""",
    """
INSERT INTO sums SELECT day, key, team, model, upstream, endpoint, requests, errors, prompt_tokens, completion_tokens,
    cached_tokens, reasoning_tokens, estimated_tokens, 0, requests FROM old_sums""",
    _records_of("old_leases", "draw", "$.record"),
    _sums_of("%Y-%m-%d", "sums", "id IN (SELECT id FROM old_leases)", ADD_SUMS),
    _sums_of(
        "%Y-%m-%dT%H",
        "hours",
        f"time > (SELECT value / 1e6 FROM meta WHERE name = 'now_us') - {HOURS_KEPT_DAYS * 86400}",  # noqa: S608
        ADD_HOURS,
    ),
    *(f"DROP TABLE old_{name}" for name in _OLD),
    f"UPDATE meta SET value = {SCHEMA_VERSION} WHERE name = 'schema'",  # noqa: S608
)


def upgrade(settings: StoreSettings) -> None:
    """Upgrade the file, if there is one of schema 1. The caller holds the folder's lock.

    Raises `StoreMisconfigured`: then the file is as it was.
    """
    path = path_of(settings)
    if not path.exists():
        return
    try:
        with closing(connect(path)) as db:
            if schema_of(db) != FIRST_SCHEMA:
                return
            with Transaction(db):
                for step in _STEPS:
                    db.execute(step)
    except (sqlite3.Error, OSError) as error:
        raise StoreMisconfigured(
            f"{path}: the file of gateway 0.1.0 cannot be upgraded: {describe_error(error)}"
        ) from None
    log.warning("%s: upgraded from the form of gateway 0.1.0, which knew no prices", path)


@contextmanager
def exclusive_folder(settings: StoreSettings) -> Iterator[None]:
    """Lock the folder, and create or upgrade the tables before several workers could do so at once.

    Raises `FolderInUse`; `StoreMisconfigured` if the file cannot be used, `OSError` if the folder cannot.
    """
    check_place(settings)
    with exclusive(settings.folder, "store.url"):
        upgrade(settings)
        create(settings).close()
        yield
