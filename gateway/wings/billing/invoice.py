"""Reader of a provider's usage export: usage by day and model.

Providers export what they bill as CSV, each with columns of its own. Known formats, from their files and documents:

- OpenAI's usage export: `start_time`, `model`, `num_model_requests`, `input_tokens` (cached ones included) ...; a day
  without usage is a line that has only its times.
- OpenAI's cost export: `amount_value`, and `line_item`, which is the model, a comma and the kind of token.
- OpenAI's export until 2024: `aggregation_timestamp`, `snapshot_id`, `n_requests`, `n_context_tokens_total` ...
- The call logs of resellers built on one-api or new-api: `created_at`, `model_name`, `prompt_tokens`, `quota` ...; also
  as the JSON pages of their log API (`GET /api/log/self`). A file holds one page or several, one after the other or in
  an array: what `curl` appended. one-api puts the entries of a page into `data`, new-api into `data.items`, beside the
  `total` of the query.
- The spend logs of LiteLLM's proxy: the array of `GET /spend/logs?summarize=false`, and pages of `GET /spend/logs/v2`
  with `total` beside `data`: `startTime`, `model_group`, `spend` ... (LiteLLM 1.106, `LiteLLM_SpendLogs` of its
  `schema.prisma`). Calls that failed are left out.

Any other file with a time, a model and numbers under names of `COLUMNS` is read in the same way. Lines of one day and
model are added up. A line that cannot be understood is a fault, and one fault rejects the file, because the sum without
that line would be wrong.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from gateway.config import printable
from gateway.reports.csv_text import unguarded

# ----------------------------------------------------------------------------------------------- pages of a log API

Entry = dict[str, Any]


def is_json(start: str) -> bool:
    """Whether a file that begins like this holds JSON and no CSV."""
    return start.lstrip().startswith(("{", "["))


def entries_of(text: str) -> list[Entry]:
    """The entries of all pages. Raises `ValueError` with the reason."""
    entries: list[Entry] = []
    total = 0
    for page in _pages(text):
        found, of = _entries_of_page(page)
        entries += found
        total = max(total, of)
    if total > len(entries):
        raise ValueError(f"holds {len(entries):,} of {total:,} entries; append the other pages of the log")
    return entries


def text_of(value: Any) -> str:
    """A member of an entry as the cell of a CSV file would have it."""
    if isinstance(value, str):
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else ""


def _pages(text: str) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        try:
            page, at = decoder.raw_decode(text, at)
        except RecursionError:
            raise ValueError("is no log: its JSON is nested too deeply") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"line {error.lineno}: is no JSON: {error.msg}") from None
        if isinstance(page, list) and not any(map(_is_entry, page)):
            yield from page
        else:
            yield page


def _is_entry(value: Any) -> bool:
    return isinstance(value, dict) and "data" not in value and "success" not in value


def _entries_of_page(page: Any) -> tuple[list[Entry], int]:
    """The entries of a page, and the total of the query; 0: the page does not have it."""
    if isinstance(page, dict) and page.get("success") is False:
        raise ValueError(f"is an error of the log API: {str(page.get('message'))[:200]!r}")
    data = page.get("data") if isinstance(page, dict) else page
    items = data.get("items") if isinstance(data, dict) else data
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ValueError("is JSON, but no page of a log: expected entries in `data` or in `data.items`")
    beside = next((each for each in (data, page) if isinstance(each, dict)), {})
    total = beside.get("total")
    return items, total if isinstance(total, int) else 0


# -------------------------------------------------------------------------------- cells; None: not understood

_COUNT = re.compile(r"(\d{1,15})(?:\.0*)?")  # `10.0`, where a spreadsheet was in between
_AMOUNT = re.compile(r"(-?)\$?(\d{1,12}(?:\.\d{0,80})?|\.\d{1,80})((?:[eE]-\d{1,2})?)")


def read_moment(text: str) -> datetime | None:
    """Unix time in seconds or milliseconds, or ISO 8601; without a zone it is UTC."""
    if re.fullmatch(r"\d{10}(\d{3})?(\.\d*)?", text):
        seconds = float(text)
        return datetime.fromtimestamp(seconds / 1000 if seconds > 1e11 else seconds, UTC)
    try:
        found = datetime.fromisoformat(text.removesuffix(" UTC"))
    except ValueError:
        return None
    try:
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except OverflowError:
        return None


def read_count(text: str) -> int | None:
    """Tokens or calls; nothing is none."""
    if not text:
        return 0
    found = _COUNT.fullmatch(text)
    return int(found[1]) if found else None


def read_amount(text: str) -> Decimal | None:
    """An amount of money, which may be given back; nothing is none."""
    if not text:
        return Decimal(0)
    found = _AMOUNT.fullmatch(text)
    return Decimal("".join(found.groups())) if found else None


def whole_nusd(usd: Decimal) -> int:
    """Converts to billionths of a US dollar, rounded to the nearest."""
    return int((usd * 10**9).to_integral_value())


T = TypeVar("T")

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "time": ("start_time", "start_time_iso", "aggregation_timestamp", "timestamp", "created_at", "created", "time",
             "usage_date", "utc_date", "date", "day", "starttime"),
    "end": ("end_time", "end_time_iso"),
    "model": ("model_group", "model", "model_name", "snapshot_id", "line_item"),
    "requests": ("num_model_requests", "n_requests", "num_requests", "requests"),
    "prompt_tokens": ("input_tokens", "prompt_tokens", "n_context_tokens_total", "tokens_prompt"),
    "completion_tokens": ("output_tokens", "completion_tokens", "n_generated_tokens_total", "tokens_completion"),
    "cached_tokens": ("input_cached_tokens", "cached_tokens", "n_cached_context_tokens_total"),
    "total_tokens": ("total_tokens",),
    "cost_usd": ("amount_value", "cost_usd", "total_cost", "cost_total", "cost", "spend"),
    "currency": ("amount_currency", "currency"),
    "quota": ("quota",),
    "type": ("type",),
    "status": ("status",),
}  # fmt: skip
"""The names of the columns, the best first, in small letters and with `_` for spaces."""

ONE_CALL_A_LINE = ("id", "request_id", "generation_id", "created_at")
"""Columns of files in which each line is one call."""

QUOTA_OF_A_DOLLAR = 500_000
"""Units for a US dollar in one-api and new-api (their `QuotaPerUnit`), unless the reseller has set another number."""

KNOWN = frozenset({*ONE_CALL_A_LINE, *chain.from_iterable(COLUMNS.values())})
"""The names of all columns that are read."""

CONSUMPTION = ("", "2")
"""Values of the column `type` that mean consumption in such logs; the others are payments, errors and acts of
administration."""

DELIMITERS = ",\t;"

FAULTS_SHOWN = 20
COLUMNS_SHOWN = 1000
"""Characters of the first line's names: a file of another kind may be one long line."""


class Tally(NamedTuple):
    """Usage according to the provider. None: the file does not have this number."""

    requests: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    total_tokens: int | None = None
    cost_nusd: int | None = None
    """Cost in billionths of a US dollar."""

    def plus(self, other: Tally) -> Tally:
        return Tally(*[None if a is None and b is None else (a or 0) + (b or 0)
                       for a, b in zip(self, other, strict=True)])  # fmt: skip


class Export(NamedTuple):
    """Holds the content of one usage file of a provider."""

    tallies: dict[tuple[str, str], Tally]
    """Usage by day (UTC) and the provider's name of the model."""
    days: tuple[str, str] | None
    """The first and the last day of the file, also without usage; None: it has no line."""
    reported: Tally
    """0 for each number that the file has, None for each that it does not have."""
    notes: tuple[str, ...]
    """How the file was read, for its reader."""


class NotUnderstood(Exception):
    """The file cannot be compared with anything: every reason, one line each."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


class _Bad(Exception):
    """A line that cannot be understood."""


def read_export(lines: Iterable[str]) -> Export:
    """Read these lines of CSV or JSON, with their line ends. Raises `NotUnderstood`, and what reading a line raises."""
    numbered = enumerate(lines, 1)
    before, first = next(((number - 1, line) for number, line in numbered if line.strip()), (0, ""))
    if is_json(first):
        return _read_pages("".join(chain([first], (line for _, line in numbered))))
    table = csv.reader(chain([first], (line for _, line in numbered)), delimiter=max(DELIMITERS, key=first.count))
    reading = None
    try:
        for row in table:
            if reading is None:
                reading = _Reading([re.sub(r"[\s-]+", "_", name.strip().lower()) for name in row])
            else:
                reading.take(list(map(unguarded, row)), f"line {before + table.line_num}")
    except csv.Error as error:
        raise NotUnderstood([f"line {before + table.line_num}: {error}"]) from None
    return (reading or _Reading([])).end()


def _read_pages(text: str) -> Export:
    try:
        entries = entries_of(text)
    except ValueError as error:
        raise NotUnderstood([str(error)]) from None
    if not entries:
        return Export({}, None, Tally(), ())
    names = dict.fromkeys(name for entry in entries for name in entry)
    read: dict[str, str] = {}
    for name in names:  # of a file with as many names as entries, each entry is read for the known ones alone
        if name.lower() in KNOWN:
            read.setdefault(name.lower(), name)
    of_read = frozenset(read.values())
    reading = _Reading([*read, ""], map(str.lower, names))
    for number, entry in enumerate(entries, 1):
        other = next((text for name in entry.keys() - of_read if (text := text_of(entry[name])).strip()), "")
        reading.take([*[text_of(entry.get(name)) for name in read.values()], other], f"entry {number}")
    return reading.end()


class _Reading:
    """The state of reading a file."""

    def __init__(self, names: Sequence[str], found: Iterable[str] | None = None) -> None:
        """`found` are the names for a message, where they are not those of the columns."""
        self._width = len(names)
        self._places = {
            meaning: names.index(name)
            for meaning, known in COLUMNS.items()
            if (name := next((name for name in known if name in names), None)) is not None
        }
        self._check(names if found is None else found)
        self._names = names
        self._is_one_call_a_line = "requests" not in self._places and any(name in names for name in ONE_CALL_A_LINE)
        self._is_line_item = names[self._places["model"]] == "line_item"
        self._is_spend_log = "spend" in names
        self._is_log = "quota" in self._places and "type" in self._places
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._days: set[str] = set()
        self._left_out = 0
        self._faults: list[str] = []
        self._bad = 0

    def _check(self, names: Iterable[str]) -> None:
        numbers = ("requests", "prompt_tokens", "completion_tokens", "total_tokens", "cost_usd", "quota")
        missing = [meaning for meaning in ("time", "model") if meaning not in self._places]
        if not missing and any(number in self._places for number in numbers):
            return
        expected = [f"a {meaning} ({', '.join(COLUMNS[meaning])})" for meaning in ("time", "model")]
        some = ", ".join([name for number in numbers for name in COLUMNS[number]])
        raise NotUnderstood([
            f"found the columns {printable(', '.join(filter(None, names))[:COLUMNS_SHOWN]) or 'of an empty file'}",
            f"expected {' and '.join(expected)}, and at least one of {some}",
        ])  # fmt: skip

    def take(self, row: Sequence[str], place: str) -> None:
        """Add one more line; `place` names it in a fault."""
        if not any(cell.strip() for cell in row):
            return
        try:
            self._take(row)
        except _Bad as bad:
            self._bad += 1
            if self._bad <= FAULTS_SHOWN:
                self._faults.append(f"{place}: {bad}")

    def _take(self, row: Sequence[str]) -> None:
        if len(row) < self._width or any(cell.strip() for cell in row[self._width :]):
            raise _Bad(f"has {len(row)} columns, the first line has {self._width}")
        is_failed = self._is_spend_log and self._cell(row, "status") == "failure"
        if is_failed or (self._is_log and self._cell(row, "type").removesuffix(".0") not in CONSUMPTION):
            self._left_out += 1
            return
        day, model = self._day(row), self._cell(row, "model")
        if self._is_line_item:
            model = model.partition(", ")[0]
        tally = self._tally(row)
        self._days.add(day)
        if not model:
            if any(tally):
                raise _Bad("names no model; export the usage by model")
            return  # a day without usage
        self._tallies[day, model] = self._tallies.get((day, model), Tally()).plus(tally)

    def _cell(self, row: Sequence[str], meaning: str) -> str:
        place = self._places.get(meaning)
        return "" if place is None else row[place].strip()

    def _read(self, row: Sequence[str], meaning: str, read: Callable[[str], T | None], what: str) -> T:
        cell = self._cell(row, meaning)
        value = read(cell)
        if value is None:
            raise _Bad(f"{self._names[self._places[meaning]]}: {cell[:40]!r} is no {what}")
        return value

    def _day(self, row: Sequence[str]) -> str:
        start = self._read(row, "time", read_moment, "time")
        if self._cell(row, "end"):
            end = self._read(row, "end", read_moment, "time")
            if end > start and (end - timedelta(microseconds=1)).date() > start.date():
                raise _Bad("covers more than one day (UTC); export the usage by day")
        return start.date().isoformat()

    def _tally(self, row: Sequence[str]) -> Tally:
        count = {
            name: self._read(row, name, read_count, "number")
            for name in ("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "total_tokens")
            if name in self._places
        }
        if self._is_one_call_a_line:
            count["requests"] = 1
        if "total_tokens" not in count and "prompt_tokens" in count:
            count["total_tokens"] = count["prompt_tokens"] + count.get("completion_tokens", 0)
        return Tally(**count, cost_nusd=self._cost_nusd(row))

    def _cost_nusd(self, row: Sequence[str]) -> int | None:
        if "cost_usd" in self._places:
            if (currency := self._cell(row, "currency").lower()) not in ("", "usd"):
                raise _Bad(f"is in {currency[:40]!r}, and only US dollars can be compared")
            return whole_nusd(self._read(row, "cost_usd", read_amount, "amount"))
        if "quota" in self._places:
            return whole_nusd(self._read(row, "quota", read_amount, "amount") / QUOTA_OF_A_DOLLAR)
        return None

    def end(self) -> Export:
        """The content of the whole file. Raises `NotUnderstood`."""
        if self._faults:
            more = self._bad - FAULTS_SHOWN
            raise NotUnderstood([*self._faults, *([f"and {more} more such lines"] if more > 0 else [])])
        notes = []
        if "quota" in self._places and "cost_usd" not in self._places:
            notes.append(f"Their cost is their quota; {QUOTA_OF_A_DOLLAR:,} of it are taken for a US dollar.")
        if self._left_out:
            notes.append(f"{self._left_out:,} of their lines are no consumption and are left out.")
        known = self._tally([""] * self._width)
        days = (min(self._days), max(self._days)) if self._days else None
        return Export(self._tallies, days, Tally(*[None if number is None else 0 for number in known]), tuple(notes))
