"""JSON of other programs is read in one place, which raises one kind of error for all that cannot be used."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping

import pytest

from gateway.commands.online import _has_choices
from gateway.untrusted_json import MAX_DEPTH, MAX_DIGITS, parse, parse_object
from gateway.wings.stored.formats import facts_when_made

from .test_floors import MODULES


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "nothing", "{'a': 1}", "[" * 100_000, "[" * 300 + "]" * 300,
        '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1), '{"a": [' * 150 + "]}" * 150, b"\xff", b"\x00",
        "\ufeff{}",
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_one_kind_of_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


@pytest.mark.parametrize(
    "value",
    [
        {}, [], None, True, 0, -1.5, 1e300, int("9" * MAX_DIGITS), "NaN", "[" * 1_000, {"a": ["{" * 500]},
        [[]] * 1_000, {str(number): {} for number in range(1_000)}, {"a": "\ud800", "b": "\U0001f600"},
    ],
)  # fmt: skip
def test_all_else_is_read_as_it_is(value: object) -> None:
    text = json.dumps(value)
    assert parse(text) == parse(text.encode()) == parse(bytearray(text.encode())) == value


@pytest.mark.parametrize(
    "number",
    ["NaN", "Infinity", "-Infinity", "1e400", "-1e999", "9" * (MAX_DIGITS + 1), "-" + "9" * MAX_DIGITS, "9" * 5_000],
)
def test_a_number_that_cannot_be_used_is_null(number: str) -> None:
    """A task or a line of a batch that has one is read all the same."""
    assert parse(number) is None
    assert parse(f'{{"a": [1, {number}], "b": 2}}'.encode()) == {"a": [1, None], "b": 2}


def test_depth_up_to_the_limit() -> None:
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert json.dumps(parse(text)) == text


@pytest.mark.parametrize("text", ["[]", "1", "null", '"{}"', "{", "[" * 300])
def test_only_an_object_is_an_object(text: str) -> None:
    assert parse_object('{"a": 1}') == {"a": 1}
    with pytest.raises(ValueError, match=r"."):
        parse_object(text)


DEEP = b'{"a":' * 40_000


def test_readers_of_other_programs_raise_their_own_errors() -> None:
    with pytest.raises(ValueError, match="deeply"):
        facts_when_made(DEEP)
    assert not _has_choices(DEEP)


# ------------------------------------------------------------------------------------------------ what else reads JSON

OF_THE_GATEWAY = """
 accounting.deferral journal.directory keys.decision_file keys.registry observe.live_counters observe.metrics
observe.worker_files process.channel process.discovery process.large_body_process quota.issued quota.ledger_entry
store.bonds store.redis.daily_sums store.refusals web.large_bodies wings.alerts.incident_watcher wings.alerts.mail
wings.answers.bills wings.answers.events wings.billing.bill wings.billing.generations wings.billing.posted
wings.content.background wings.content.digester wings.content.process wings.fan_out.prompts wings.people.sessions
wings.plugins.loading wings.queue.fair_queue wings.queue.promises wings.scim.resources wings.stored.batch_file
wings.stored.files wings.transfer.redis_tables wings.transfer.rows wings.transfer.sqlite_tables wings.transfer.taking
"""
"""Modules that read what a gateway has written: another worker, the store, a process of its own."""

WITH_ANOTHER_RULE: Mapping[str, str] = {
    "api.json_document": "bodies of clients, whose names have to differ",
    "config.price_table": "decimals; every error is caught",
    "formats.event_scan": "each event of a stream: nothing is done for a single number",
    "formats.events": "pieces of arguments, which are passed on as texts",
    "formats.format": "only refuses what pydantic, which has read the answer, accepts and JSON does not have",
    "formats.member_reader": "members of a body of a limited depth",
    "formats.openai.reader": "an answer that is written again, with its numbers as they are",
    "wings.realtime.formats": "refuses names that are given twice",
    "formats.reason_cleaner": "one text",
    "formats.token_rule": "one text",
    "upstream.error_shapes": "reasons of errors, also with NaN; limited by MAX_ERROR_PARTS",
    "wings.billing.invoice": "several documents in one file",
    "wings.clouds.addresses": "a name in a body that was checked",
    "wings.content.messages": "one text",
    "wings.translate.tool_names": "one text of an answer that was read",
}


def readers(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="json"), attr="loads" | "load" | "JSONDecoder"):
                yield ast.unparse(node)


def test_each_other_reader_of_json_has_a_reason() -> None:
    reading = {
        name.removeprefix("gateway.") for name, source in MODULES.items() if "json" in source and any(readers(source))
    }
    listed = {*OF_THE_GATEWAY.split(), *WITH_ANOTHER_RULE}
    listed -= {name for name in listed if name.startswith("wings.") and f"gateway.{name}" not in MODULES}
    others = {name for name in reading if not name.startswith("simulator")} - {"untrusted_json"}
    assert others == listed, "read JSON of other programs by gateway.untrusted_json"
