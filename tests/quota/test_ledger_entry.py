"""The text of a call: what is written is what is read, and Lua can read it exactly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import units
from gateway.quota import ledger_entry
from gateway.records import Claim, Record, Settlement, Usage, Window

NOON = 1795176000.25

counts = st.integers(0, 2**53 - 1)
seconds = st.floats(0, 1e6, allow_nan=False)
names = st.text(max_size=20)
moments = st.floats(1.7e9, 4e9, allow_nan=False)
usages = st.builds(
    Usage, counts, counts, counts, counts, st.sampled_from(["reported", "estimated", "none"]),
    st.just(()) | st.dictionaries(st.sampled_from(sorted(units.UNITS)), counts).map(units.counts),
    variant=st.just(""), parts=st.just(()), model=st.just(""),
)  # fmt: skip
records = st.builds(
    Record,
    id=names, time=moments, key=names, team=st.none() | names, endpoint=names, model=names, label_model=names,
    routed_model=names, returned_model=st.none() | names, upstream=names, status=st.integers(0, 599),
    stream=st.booleans(), usage=usages, ended=st.sampled_from(["done", "error", "client_gone", "lost"]),
    first_byte_s=st.none() | seconds, duration_s=seconds, attempts=st.integers(0, 9), truncated=st.booleans(),
    client_request_id=st.none() | names, cost_nusd=st.none() | counts, price=st.none() | names,
)  # fmt: skip
windows = st.builds(
    Window,
    id=names.map(lambda name: name.replace("|", "")), scope=st.just(""),
    unit=st.sampled_from(["requests", "tokens", "usd", "parallel"]), per=st.just(""),
    model=st.none(), limit=counts, period_us=counts, starts=st.sampled_from(["", "2026-11-20", "2026-11"]),
    resets_us=st.just(0), is_enforced=st.booleans(),
)  # fmt: skip
settlements = st.builds(Settlement, records, st.lists(st.builds(Claim, windows, counts), max_size=4).map(tuple))


def as_kept(record: Record) -> Record:
    """With times in whole microseconds."""
    first = record.first_byte_s
    return record._replace(
        time=float(f"{record.time:.6f}"),
        duration_s=float(f"{record.duration_s:.6f}"),
        first_byte_s=None if first is None else float(f"{first:.6f}"),
    )


def a_record(**changes: Any) -> Record:
    values = {
        "id": "req_1", "time": NOON, "key": "alice", "team": None, "endpoint": "chat", "model": "asked",
        "label_model": "gpt", "routed_model": "there", "returned_model": "gpt-1", "upstream": "main", "status": 200,
        "stream": True, "usage": Usage(10, 5, 4, 2, "reported"), "ended": "done", "first_byte_s": 0.5,
        "duration_s": 1.5, "attempts": 1,
    }  # fmt: skip
    return Record(**{**values, **changes})


@given(settlements)
def test_what_is_written_is_what_is_read(settlement: Settlement) -> None:
    text = ledger_entry.encode(*settlement)
    record, claims = ledger_entry.decode(text)
    assert (as_kept(record), claims) == (as_kept(settlement.record), settlement.claims)
    assert text.count("\t") == 1
    assert text.isascii()
    assert text.isprintable() or "\t" in text
    assert "\n" not in text


@given(settlements, names)
def test_a_note_is_read_past_and_found(settlement: Settlement, note: str) -> None:
    """Gateways that do not know notes leave out what is behind the fields that they know."""
    plain = ledger_entry.encode(*settlement)
    noted = ledger_entry.with_note(plain, note)
    assert "\n" not in noted
    assert (ledger_entry.note_of(noted), ledger_entry.note_of(plain)) == (note, None)
    assert ledger_entry.decode(noted) == ledger_entry.decode(plain)
    assert ledger_entry.decode(ledger_entry.without_note(noted)) == ledger_entry.decode(plain)
    fields = json.loads(noted.partition("\t")[2])
    assert len(fields) == ledger_entry._FIELDS + 1


@given(settlements)
def test_the_scripts_part_holds_whole_numbers_and_texts_only(settlement: Settlement) -> None:
    def look(value: Any) -> None:
        if isinstance(value, list):
            for each in value:
                look(each)
        else:
            assert isinstance(value, str) or (isinstance(value, int) and 0 <= value < 2**55), value

    look(json.loads(ledger_entry.encode(*settlement).partition("\t")[0]))


def test_an_entry_has_the_counts_of_its_call() -> None:
    window = Window("key:alice|tokens|day||2026-11-20", "key:alice", "tokens", "day", None, 1000, 0, "2026-11-20", 5)
    slots = Window("key:alice|parallel||", "key:alice", "parallel", "", None, 3, is_enforced=False)
    settlement = Settlement(a_record(cost_nusd=77), (Claim(window, 40), Claim(slots, 1)))
    lease, day, group, sums, claims = json.loads(ledger_entry.encode(*settlement).partition("\t")[0])
    assert (lease, day) == ("req_1", "2026-11-20")
    assert group.split(ledger_entry.SEPARATOR) == ["alice", "", "gpt", "main", "chat"]
    assert dict(zip(ledger_entry.SUMS, sums, strict=True)) == {
        "requests": 1, "errors": 0, "prompt_tokens": 10, "completion_tokens": 5, "cached_tokens": 4,
        "reasoning_tokens": 2, "estimated_tokens": 0, "cost_nusd": 77, "unpriced": 0,
    }  # fmt: skip
    assert claims == [
        ["key:alice|tokens|day||2026-11-20", "2026-11-20", "tokens", 1000, 0, 1, 40, 15],
        ["key:alice|parallel||", "", "parallel", 3, 0, 0, 1, 0],
    ]


@pytest.mark.parametrize(
    ("record", "sums"),
    [
        (a_record(ended="error", usage=Usage()), (1, 1, 0, 0, 0, 0, 0, 0, 1)),
        (a_record(usage=Usage(3, 4, source="estimated"), cost_nusd=0), (1, 0, 3, 4, 0, 0, 7, 0, 0)),
    ],
)
def test_sums(record: Record, sums: tuple[int, ...]) -> None:
    assert ledger_entry.sums_of(record) == sums


def test_a_day_is_that_of_the_calls_beginning() -> None:
    midnight = 1795219200.0
    days = [
        json.loads(ledger_entry.encode(a_record(time=t), ()).partition("\t")[0])[1] for t in (midnight - 1, midnight)
    ]
    assert days == ["2026-11-20", "2026-11-21"]


def test_a_record_of_an_older_gateway_can_be_read() -> None:
    """One that did not keep prices, and one that did not keep costs either."""
    values = json.loads(ledger_entry.encode(a_record(cost_nusd=5, price="1 1 2"), ()).partition("\t")[2])
    assert ledger_entry.decode_record(json.dumps(values[:-1])) == a_record(cost_nusd=5)
    assert ledger_entry.decode_record(json.dumps(values[:-2])) == a_record(cost_nusd=None)


def test_a_record_of_a_newer_gateway_can_be_read() -> None:
    """Gateways of neighbouring versions share a Redis while one after the other is replaced."""
    values = json.loads(ledger_entry.encode(a_record(price="1 1 2"), ()).partition("\t")[2])
    newer = a_record(price="1 1 2", usage=Usage(10, 5, 4, 2, "reported", (("of_tomorrow", 7),)))
    values += ["of_tomorrow=7", *[""] * 6, "of tomorrow"]
    assert ledger_entry.decode_record(json.dumps(values)) == newer


def test_a_record_without_failed_attempts_user_and_tags_can_be_read() -> None:
    """A gateway that had units and none of these wrote one value behind the price."""
    values = json.loads(ledger_entry.encode(a_record(price="1 1 2"), ()).partition("\t")[2])
    usage = Usage(10, 5, 4, 2, "reported", (("cache_write", 3),))
    assert ledger_entry.decode_record(json.dumps([*values, "cache_write=3"])) == a_record(price="1 1 2", usage=usage)


def test_a_call_with_nothing_behind_its_price_is_written_as_before() -> None:
    plain = ledger_entry.encode(a_record(price="1 1 2"), ())
    assert plain.endswith(',null,"1 1 2"]')
    usage = Usage(10, 5, 4, 2, "reported", (("cache_write", 3), ("web_searches", 2)))
    assert ledger_entry.encode(a_record(price="1 1 2", usage=usage), ()) == (
        plain[:-1] + ',"cache_write=3 web_searches=2","","",""]'
    )


def test_the_times_of_attempts_are_written_where_there_are_some() -> None:
    """A gateway that does not know them reads past them."""
    timed = a_record(price="1 1 2", failed="a:status", timeline="a:0:5:status b:5:9:")
    text = ledger_entry.encode(timed, ()).partition("\t")[2]
    assert text.endswith('"1 1 2","","a:status","","","a:0:5:status b:5:9:"]')
    assert ledger_entry.decode_record(text) == timed
    untimed = timed._replace(timeline="")
    without = text.removesuffix(',"a:0:5:status b:5:9:"]') + "]"
    assert ledger_entry.decode_record(without) == untimed
    assert ledger_entry.encode(untimed, ()).partition("\t")[2] == without


@pytest.mark.parametrize(
    "text", ["", "[]\t[]", "{}\t{}", "[1,2,3,4,5]\t[1]", "nonsense", '["a","b","c",[],[["w"]]]\t[]']
)
def test_what_is_no_entry_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an entry|not a record|Expecting|unpack"):
        ledger_entry.decode(text)


@pytest.mark.parametrize(
    ("name", "starts", "model"),
    [
        ("key:k|tokens|day|gpt-4*|2026-11-20", "2026-11-20", "gpt-4*"),
        ("key:k|tokens|day||2026-11-20", "2026-11-20", None),
        ("team:a|b|requests|minute|gpt-4*|", "", "gpt-4*"),
        ("key:k|parallel|||", "", None),
        ("upstream:u|tokens|minute|gpt-4*|", "", None),
    ],
)
def test_the_models_of_a_window_are_read_from_its_name(name: str, starts: str, model: str | None) -> None:
    window = Window(name, "", "tokens", "", model, 9, 0, starts)
    (claim,) = ledger_entry.decode(ledger_entry.encode(a_record(), (Claim(window, 1),))).claims
    assert claim.window.model == model
