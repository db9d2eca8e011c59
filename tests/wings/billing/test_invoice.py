"""What providers' files say: the columns of each kind, the times, the numbers, and what is refused by its line."""

from __future__ import annotations

import csv
import io
import json
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wings.billing import invoice
from gateway.wings.billing.invoice import FAULTS_SHOWN, Export, NotUnderstood, Tally, read_export

OPENAI = """\
start_time,end_time,start_time_iso,end_time_iso,project_id,num_model_requests,user_id,api_key_id,model,batch,\
service_tier,input_tokens,output_tokens,input_cached_tokens,input_uncached_tokens,input_text_tokens
1795132800,1795219200,2026-11-20T00:00:00+00:00,2026-11-21T00:00:00+00:00,proj_1,10,u,k,gpt-4o-2024-08-06,FALSE,\
default,59200,10646,5760,53440,53440
1795132800,1795219200,2026-11-20T00:00:00+00:00,2026-11-21T00:00:00+00:00,proj_2,1,u,k,gpt-4o-2024-08-06,TRUE,\
default,800,54,0,800,800
1795219200,1795305600,2026-11-21T00:00:00+00:00,2026-11-22T00:00:00+00:00,,,,,,,,,,,,
1795305600,1795392000,2026-11-22T00:00:00+00:00,2026-11-23T00:00:00+00:00,proj_1,2.0,u,k,text-embedding-3-small,FALSE,\
default,30.0,0.0,0.0,30.0,30.0
"""

COSTS = """\
start_time,end_time,start_time_iso,end_time_iso,amount_value,amount_currency,line_item,project_id,organization_id
1795132800,1795219200,2026-11-20T00:00:00+00:00,2026-11-21T00:00:00+00:00,0.000004500000000000000000000000000000000,usd,\
"gpt-4o-mini-2024-07-18, input",p,o
1795132800,1795219200,2026-11-20T00:00:00+00:00,2026-11-21T00:00:00+00:00,0.895874,usd,\
"gpt-4o-mini-2024-07-18, output",p,o
1795132800,1795219200,2026-11-20T00:00:00+00:00,2026-11-21T00:00:00+00:00,-0.01,usd,"gpt-4o-mini-2024-07-18, output",p,o
1795132800,1795219200,2026-11-20T00:00:00+00:00,2026-11-21T00:00:00+00:00,0.5,usd,web search tool calls,p,o
1795219200,1795305600,2026-11-21T00:00:00+00:00,2026-11-22T00:00:00+00:00,,,,,
"""

UNTIL_2024 = """\
organization_id,aggregation_timestamp,n_requests,operation,snapshot_id,n_context_tokens_total,\
n_generated_tokens_total,n_cached_context_tokens_total
org,1795176000,3,completion,gpt-4-0613,100,20,0
org,1795176300,4,completion,gpt-4-0613,200,30,8
"""

RESELLER = """\
id,user_id,created_at,type,content,username,token_name,model_name,quota,prompt_tokens,completion_tokens,use_time
9,7,1795176000,2,,me,gateway,gpt-4o-mini,1250,1000,200,3
8,7,1795176001,2,,me,gateway,gpt-4o-mini,1,10,5,1
7,7,1795176002,1,paid,me,,,500000,0,0,0
6,7,1795176003,5,status 500,me,gateway,gpt-4o-mini,0,0,0,1
"""

PLAIN = """\
date;Model;Requests;Input Tokens;Output Tokens;Total Tokens;Cost USD
2026-11-20;m;1;10;5;15;$0.25
"""

NO_COST = ("gpt-4o-2024-08-06", "text-embedding-3-small")


def read(text: str) -> Export:
    return read_export(io.StringIO(text, newline=""))


@pytest.mark.parametrize(
    ("text", "tallies", "days"),
    [
        (
            OPENAI,
            {
                ("2026-11-20", "gpt-4o-2024-08-06"): Tally(11, 60_000, 10_700, 5760, 70_700),
                ("2026-11-22", "text-embedding-3-small"): Tally(2, 30, 0, 0, 30),
            },
            ("2026-11-20", "2026-11-22"),
        ),
        (
            COSTS,
            {
                ("2026-11-20", "gpt-4o-mini-2024-07-18"): Tally(cost_nusd=4500 + 895_874_000 - 10_000_000),
                ("2026-11-20", "web search tool calls"): Tally(cost_nusd=500_000_000),
            },
            ("2026-11-20", "2026-11-21"),
        ),
        (
            UNTIL_2024,
            {("2026-11-20", "gpt-4-0613"): Tally(7, 300, 50, 8, 350)},
            ("2026-11-20", "2026-11-20"),
        ),
        (
            RESELLER,
            {("2026-11-20", "gpt-4o-mini"): Tally(2, 1010, 205, None, 1215, 2_502_000)},
            ("2026-11-20", "2026-11-20"),
        ),
        (
            PLAIN,
            {("2026-11-20", "m"): Tally(1, 10, 5, None, 15, 250_000_000)},
            ("2026-11-20", "2026-11-20"),
        ),
    ],
    ids=["openai", "costs", "until 2024", "reseller", "plain"],
)  # fmt: skip
def test_what_a_file_says(text: str, tallies: dict[tuple[str, str], Tally], days: tuple[str, str]) -> None:
    found = read(text)
    assert found.tallies == tallies
    assert found.days == days
    assert {tuple(number is None for number in tally) for tally in (*tallies.values(), found.reported)} == {
        tuple(number is None for number in found.reported)
    }
    assert set(found.reported) <= {0, None}


@pytest.mark.parametrize(
    "changed",
    [
        OPENAI.replace(",", "\t"),
        OPENAI.replace("\n", "\r\n"),
        "\n\n" + OPENAI + "\n",
        OPENAI.replace("num_model_requests", "Num Model Requests"),
        ",".join([f'"{name}"' for name in OPENAI.partition("\n")[0].split(",")]) + "\n" + OPENAI.partition("\n")[2],
    ],
    ids=["tabs", "crlf", "empty lines", "spaced names", "quoted names"],
)
def test_dress_of_a_file_does_not_matter(changed: str) -> None:
    assert read(changed) == read(OPENAI)


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        ("id,date,model,requests,input_tokens\na,2026-11-20,m,7,1\nb,2026-11-20,m,8,1\n", 15),  # said, so not counted
        ("id,date,model,input_tokens\na,2026-11-20,m,1\nb,2026-11-20,m,1\n", 2),
        ("date,model,input_tokens\n2026-11-20,m,1\n2026-11-20,m,1\n", None),
        ("created_at,type,model_name,quota\n1795176000,2.0,m,1\n1795176000,,m,1\n1795176000,3,m,1\n", 2),
    ],
)
def test_requests_are_said_or_counted_where_a_line_is_a_call(text: str, requests: int | None) -> None:
    (tally,) = read(text).tallies.values()
    assert tally.requests == requests


def test_notes_say_what_was_assumed_and_left_out() -> None:
    assert read(RESELLER).notes == (
        "Their cost is their quota; 500,000 of it are taken for a US dollar.",
        "2 of their lines are no consumption and are left out.",
    )
    assert read(OPENAI).notes == read(COSTS).notes == ()


@pytest.mark.parametrize(
    ("time", "day"),
    [
        ("1795176000", "2026-11-20"),
        ("1795176000.0", "2026-11-20"),
        ("1795176000123", "2026-11-20"),
        ("1795219199", "2026-11-20"),
        ("1795219200", "2026-11-21"),
        ("2026-11-20", "2026-11-20"),
        ("20261120", "2026-11-20"),
        ("2026-11-20T23:59:59Z", "2026-11-20"),
        ("2026-11-20 23:59:59", "2026-11-20"),
        ("2026-11-20 23:59:59 UTC", "2026-11-20"),
        ("2026-11-20T23:30:00.5-01:00", "2026-11-21"),
        ("2026-11-21T07:59:59+08:00", "2026-11-20"),
    ],
)
def test_times_are_in_utc(time: str, day: str) -> None:
    assert read(f"time,model,requests\n{time},m,1\n").days == (day, day)


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", ["found the columns of an empty file"]),
        ("a,b\n1,2\n", ["found the columns a, b", "expected a time (start_time, "]),
        ("date,requests\n2026-11-20,1\n", ["found the columns date, requests", "a model (model_group, model, "]),
        ("\x1b[2J," + "x" * 2000, ["found the columns \\x1b[2j, " + "x" * 994, "expected"]),
        ("date,model\n2026-11-20,m\n", ["found the columns date, model", "at least one of num_model_requests, "]),
        # The same name means tokens in one provider's file and money in another's.
        ("utc_date,model,type,price,amount\n2026-11-20,m,output_tokens,1,99\n", ["found the columns", "expected"]),
    ],
)
def test_unknown_columns(text: str, faults: list[str]) -> None:
    with pytest.raises(NotUnderstood) as refused:
        read(text)
    for fault, words in zip(refused.value.faults, faults, strict=False):
        assert words in fault
        assert len(fault) < 1100


HEAD = "start_time,end_time,model,num_model_requests,input_tokens,amount_value,amount_currency"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("yesterday,,m,1,1,1,usd", "line 3: start_time: 'yesterday' is no time"),
        (",,m,1,1,1,usd", "line 3: start_time: '' is no time"),
        ("20/11/2026,,m,1,1,1,usd", "line 3: start_time: '20/11/2026' is no time"),
        ("123,,m,1,1,1,usd", "line 3: start_time: '123' is no time"),
        ("2026-11-20,soon,m,1,1,1,usd", "line 3: end_time: 'soon' is no time"),
        ("2026-11-20,2026-11-27,m,1,1,1,usd", "line 3: covers more than one day (UTC)"),
        ("2026-11-20,,m,many,1,1,usd", "line 3: num_model_requests: 'many' is no number"),
        ("2026-11-20,,m,1,-1,1,usd", "line 3: input_tokens: '-1' is no number"),
        ("2026-11-20,,m,1,1.5,1,usd", "line 3: input_tokens: '1.5' is no number"),
        ('2026-11-20,,m,1,"1,234",1,usd', "line 3: input_tokens: '1,234' is no number"),
        ("2026-11-20,,m,1,9999999999999999,1,usd", "line 3: input_tokens: '9999999999999999' is no number"),
        ("2026-11-20,,m,1,1,NaN,usd", "line 3: amount_value: 'NaN' is no amount"),
        ("2026-11-20,,m,1,1,1e9,usd", "line 3: amount_value: '1e9' is no amount"),
        ("2026-11-20,,m,1,1,.,usd", "line 3: amount_value: '.' is no amount"),
        ("2026-11-20,,m,1,1,1,eur", "line 3: is in 'eur', and only US dollars can be compared"),
        ("2026-11-20,,,1,1,1,usd", "line 3: names no model; export the usage by model"),
        ("2026-11-20,,m,1,1", "line 3: has 5 columns, the first line has 7"),
        ("2026-11-20,,m,1,1,1,usd,9", "line 3: has 8 columns, the first line has 7"),
    ],
)
def test_line_that_cannot_be_understood_refuses_the_file(line: str, fault: str) -> None:
    with pytest.raises(NotUnderstood) as refused:
        read(f"{HEAD}\n2026-11-20,,m,1,1,1,usd\n{line}\n2026-11-20,,m,1,1,1,usd\n")
    (received,) = refused.value.faults
    assert received.startswith(fault)


def test_every_bad_line_is_named_by_its_number() -> None:
    lines = [HEAD, *["2026-11-20,,m,1,1,1,usd", "never,,m,1,1,1,usd"] * 30]
    with pytest.raises(NotUnderstood) as refused:
        read("\n" + "\n".join(lines))
    *named, last = refused.value.faults
    assert [fault.partition(":")[0] for fault in named] == [f"line {4 + 2 * i}" for i in range(FAULTS_SHOWN)]
    assert last == f"and {30 - FAULTS_SHOWN} more such lines"


def test_number_of_a_line_counts_the_lines_within_a_cell() -> None:
    with pytest.raises(NotUnderstood, match=r"^line 4: start_time: 'never'"):
        read(f'{HEAD}\n2026-11-20,,"m\n",1,1,1,usd\nnever,,m,1,1,1,usd\n')


def test_cell_of_no_end_is_no_cell() -> None:
    with pytest.raises(NotUnderstood, match="field larger than field limit"):
        read(f'{HEAD}\n2026-11-20,,"{"x" * 200_000}')


def test_an_end_before_all_time_is_none() -> None:
    """Go writes a time that was never set as the first moment of the year 1."""
    export = read(f"{HEAD}\n2026-11-20,0001-01-01T00:00:00Z,m,1,1,1,usd\n")
    assert list(export.tallies) == [("2026-11-20", "m")]


def test_trailing_empty_cells_are_forgiven() -> None:
    assert read(f"{HEAD}\n2026-11-20,,m,1,1,1,usd,,\n").tallies == {
        ("2026-11-20", "m"): Tally(1, 1, None, None, 1, 10**9)
    }


def test_a_file_without_lines_has_no_days() -> None:
    assert read(HEAD) == Export({}, None, Tally(0, 0, None, None, 0, 0), ())


def test_small_amounts_are_not_lost() -> None:
    (tally,) = read("date,model,cost\n2026-11-20,m,4.5e-06\n2026-11-20,m,.0000005\n").tallies.values()
    assert tally == Tally(cost_nusd=5000)


days = st.dates(min_value=date(2000, 1, 1)).map(date.isoformat)
names = st.text(min_size=1, max_size=20).map(str.strip).filter(bool)
rows = st.lists(st.tuples(days, names, *[st.integers(0, 10**12)] * 3), max_size=20)


@given(rows)
def test_nothing_is_lost_on_the_way(written: list[tuple[Any, ...]]) -> None:
    """Whatever stands in a file whose lines are good is in the sums, whatever its models are called."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([("date", "model", "requests", "input_tokens", "output_tokens"), *written])
    text.seek(0)
    found = read_export(text)
    assert set(found.tallies) == {row[:2] for row in written}
    for place, name in enumerate(("requests", "prompt_tokens", "completion_tokens"), 2):
        assert sum(getattr(tally, name) for tally in found.tallies.values()) == sum(row[place] for row in written)


# --------------------------------------------------------------------------------- JSON pages of one-api and new-api


def entries(text: str = RESELLER) -> list[dict[str, Any]]:
    """The lines of the reseller's log as its log API gives them."""
    numbers = ("id", "user_id", "created_at", "type", "quota", "prompt_tokens", "completion_tokens", "use_time")
    rows = csv.DictReader(io.StringIO(text))
    return [{name: int(value) if name in numbers else value for name, value in row.items()} for row in rows]


def one_api(*some: dict[str, Any]) -> str:
    return json.dumps({"success": True, "message": "", "data": list(some)})


def new_api(total: int, *some: dict[str, Any]) -> str:
    page = {"page": 1, "page_size": 2, "total": total, "items": list(some)}
    return json.dumps({"success": True, "message": "", "data": page})


@pytest.mark.parametrize(
    "text",
    [
        one_api(*entries()),
        one_api(*entries()[:1]) + one_api(*entries()[1:]) + one_api(),
        "\n" + one_api(*entries()[:1]) + "\n" + one_api(*entries()[1:]) + "\n",
        f"[{one_api(*entries()[:1])}, {one_api(*entries()[1:])}]",
        new_api(4, *entries()),
        new_api(4, *entries()[:2]) + "\n" + new_api(4, *entries()[2:]),
        json.dumps(entries()),
        json.dumps({"data": entries()}, indent=1),
    ],
)
def test_pages_of_a_log_say_what_its_csv_says(text: str) -> None:
    assert read_export(text.splitlines(keepends=True)) == read_export(RESELLER.splitlines(keepends=True))


@pytest.mark.parametrize("text", [one_api(), new_api(0), "[]"])
def test_log_without_an_entry(text: str) -> None:
    assert read_export([text]) == Export({}, None, Tally(), ())


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (new_api(130, *entries()), "holds 4 of 130 entries; append the other pages of the log"),
        ('{"success": false, "message": "无权进行此操作"}', "is an error of the log API: '无权进行此操作'"),
        ('{"a": 1}', "is JSON, but no page of a log: expected entries in `data` or in `data.items`"),
        ("[1]", "is JSON, but no page of a log: expected entries in `data` or in `data.items`"),
        (one_api(*entries()) + "\n{", "line 2: is no JSON: Expecting property name enclosed in double quotes"),
        ("[" * 100_000, "is no log: its JSON is nested too deeply"),
        (one_api({**entries()[0], "created_at": "never"}), "entry 1: created_at: 'never' is no time"),
        (one_api({"x": 1}), "found the columns x"),
    ],
)
def test_pages_that_are_not_understood(text: str, fault: str) -> None:
    with pytest.raises(NotUnderstood) as caught:
        read_export(text.splitlines(keepends=True))
    assert caught.value.faults[0] == fault


def test_each_entry_is_read_for_the_known_names_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(invoice, "text_of", lambda value: str(read.append(value) or value or ""))
    first = {"time": "2026-11-20", "Model": "m", "requests": 1}
    export = read_export([json.dumps([first, *[{**first, f"other_{number}": 1} for number in range(500)]])])
    assert export.tallies["2026-11-20", "m"].requests == 501
    assert len(read) < 5 * 501
