"""`gateway usage` as an operator types it: beside a gateway that runs, after one, and where nothing is to be had."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import resource
import sqlite3
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.store import USAGE_COLUMNS
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import dead_port, ok_json
from tests.flows.gateway_process import COMPLETIONS, Gateway, command, eventually, key, model, run, settings
from tests.flows.planted import plant, record

NOWHERE = "http://127.0.0.1:9/v1"
PASSWORD = "store-password-that-nobody-may-see"

Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module", params=["embedded", "redis"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a store is, or may be made."""
    folder = tmp_path_factory.mktemp("store")
    if request.param == "embedded":
        yield f"embedded:{folder / 'data'}"
        return
    with RedisServer(folder, password=PASSWORD) as server:
        yield server.url


def written(folder: Path, url: str, **changes: Any) -> str:
    """A configuration with this store."""
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump(settings(NOWHERE, store={"url": url}, **changes)))
    return str(path)


def rows(done: Done) -> list[dict[str, Any]]:
    """The rows of a report in JSON."""
    assert (done.returncode, done.stderr) == (0, ""), done
    read: list[dict[str, Any]] = json.loads(done.stdout)
    return read


def says(done: Done, code: int, *words: str) -> None:
    """This exit code, nothing on standard output, and one plain line on standard error."""
    assert (done.returncode, done.stdout) == (code, ""), done
    (line,) = done.stderr.splitlines()
    assert line.startswith("gateway: ")
    for each in words:
        assert each in line
    assert PASSWORD not in line


# ------------------------------------------------------------------------------------------- beside a gateway that runs


def counted(prompt: int, completion: int) -> Any:
    choices = [{"text": "", "finish_reason": "stop"}]
    return ok_json({"choices": choices, "usage": {"prompt_tokens": prompt, "completion_tokens": completion}})


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, url: str) -> Gateway:
    """Two keys have used it today, one of them a model without a price; a third did last year, and is gone since."""
    plant(url, [record("2025-01-31", "carol", cost_nusd=3_000_000_000), record("2025-02-01", "carol", cost_nusd=0)])
    models = {COMPLETIONS: model("completions", price={"input": 1.5, "output": 2})}
    gateway = start_shared_gateway(
        settings(shared_upstream.url, store={"url": url}, models=models, keys=[key("alice", team="crew"), key("bob")],
                 teams={"crew": {}})
    )  # fmt: skip
    shared_upstream.answer_with(always=counted(10, 5))
    answers = [gateway.complete("alice"), gateway.complete("alice"), gateway.complete("bob"), gateway.chat("bob")]
    assert [answer.status for answer in answers] == [200] * 4
    eventually(lambda: len(gateway.calls()) == 6)
    return gateway


def usage(gateway: Gateway, *arguments: str) -> Done:
    return run("usage", "--config", str(gateway.file), *arguments)


def test_who_used_how_much(gateway: Gateway) -> None:
    done = usage(gateway)
    assert (done.returncode, done.stderr) == (0, "")
    table, _, note = done.stdout.partition("\n\n")
    names, rule, *lines, last_rule, total = table.splitlines()
    assert rule == last_rule
    assert len({len(line) for line in table.splitlines()}) == 1
    assert names.split()[:3] == ["key", "requests", "errors"]
    assert [line.split() for line in (*lines, total)] == [
        ["alice", "2", "0", "20", "10", "0", "0", "0", "0.00", "30", "0.000050", "0"],
        ["bob", "2", "0", "20", "10", "0", "0", "0", "0.00", "30", "0.000025", "1"],
        ["carol", "2", "0", "20", "10", "0", "0", "0", "0.00", "30", "3.000000", "0"],
        ["total", "6", "0", "60", "30", "0", "0", "0", "0.00", "90", "3.000075", "1"],
    ]
    assert note == "The cost of 1 of 6 requests is unknown, and in no sum.\n"


@pytest.mark.parametrize("by", ["key", "team,model", "upstream,endpoint", "day", "month,key", ""])
def test_scripts_read_what_the_admin_api_says(gateway: Gateway, by: str) -> None:
    received = gateway.usage(group_by=by)
    assert rows(usage(gateway, "--by", by, "--format", "json")) == received
    spelt = usage(gateway, "--by", by, "--format", "csv")
    assert (spelt.returncode, spelt.stderr) == (0, "")
    assert "\r" not in spelt.stdout
    read = list(csv.DictReader(io.StringIO(spelt.stdout)))
    assert list(read[0]) == [*filter(None, by.split(",")), *USAGE_COLUMNS]
    assert [{name: int(row[name]) for name in ("requests", "total_tokens", "unpriced")} for row in read] == [
        {name: row[name] for name in ("requests", "total_tokens", "unpriced")} for row in received
    ]
    assert [float(row["cost_usd"]) if row["cost_usd"] else None for row in read] == [
        row["cost_usd"] for row in received
    ]


@pytest.mark.parametrize(
    "narrowed",
    [{"key": "alice"}, {"team": "nowhere"}, {"model": COMPLETIONS, "key": "bob"}, {"upstream": "main"}],
    ids=str,
)
def test_it_is_narrowed_as_the_admin_api_is(gateway: Gateway, narrowed: dict[str, str]) -> None:
    options = [word for name, value in narrowed.items() for word in (f"--{name}", value)]
    received = gateway.usage(group_by="key,model", **narrowed)
    assert rows(usage(gateway, "--by", "key,model", *options, "--json")) == received
    assert rows(usage(gateway, "--by", "key,model", *options, "--format", "json")) == received
    assert len(received) < len(gateway.usage(group_by="key,model")) or "upstream" in narrowed
    texts = {usage(gateway, "--by", "key,model", *options, *shape).stdout for shape in (["--csv"], ["--format", "csv"])}
    assert [text.count("\n") for text in texts] == [len(received) + 1]


def test_unknown_cost_is_no_zero(gateway: Gateway) -> None:
    by = ("--by", "key,model")
    found = {(row["key"], row["model"]): row for row in rows(usage(gateway, *by, "--format", "json"))}
    assert [(row["cost_usd"], row["unpriced"]) for row in found.values()] == [(5e-5, 0), (2.5e-5, 0), (None, 1), (3, 0)]
    (line,) = [line for line in usage(gateway, *by).stdout.splitlines() if "gpt-4o-mini" in line]
    assert line.split()[-2:] == ["-", "1"]
    (text,) = [row for row in csv.DictReader(io.StringIO(usage(gateway, *by, "--format", "csv").stdout))
               if row["model"] == "gpt-4o-mini"]  # fmt: skip
    assert (text["cost_usd"], text["unpriced"]) == ("", "1")


def test_days_are_the_first_and_the_last(gateway: Gateway) -> None:
    def months(*arguments: str) -> list[tuple[str, int]]:
        found = rows(usage(gateway, "--by", "month", "--format", "json", *arguments))
        return [(row["month"], row["requests"]) for row in found]

    now = datetime.fromtimestamp(gateway.calls(limit=1)[0]["time"], UTC).strftime("%Y-%m")
    assert months() == [("2025-01", 1), ("2025-02", 1), (now, 4)]
    assert months("--since", "2025-01-31", "--until", "2025-01-31") == [("2025-01", 1)]
    assert months("--since", "2025-02-01") == [("2025-02", 1), (now, 4)]
    assert months("--until", "2025-01-30") == []
    assert usage(gateway, "--until", "2025-01-30").stdout == "Nothing was used.\n"


def test_a_report_delays_no_call(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """The command closes no leases, and is not registered as a worker."""
    before = gateway.usage()
    for _ in range(3):
        assert usage(gateway).returncode == 0
    assert gateway.usage() == before
    upstream.answer_with(always=counted(0, 0))
    assert gateway.complete("alice").status == 200

    def alice() -> dict[str, Any] | None:  # a lone worker's file has a call 0.1 s later
        return next((row for row in rows(usage(gateway, "--format", "json")) if row["requests"] == 3), None)

    assert eventually(alice)["key"] == "alice"


# ----------------------------------------------------------------------------------------------------------- on its own


def test_no_gateway_is_needed(tmp_path: Path, url: str) -> None:
    plant(url, [record("2026-01-01", "k", team="crew") for _ in range(250)], namespace="alone")
    path = tmp_path / "gateway.yaml"
    path.write_text(yaml.safe_dump(settings(NOWHERE, store={"url": url, "namespace": "alone"})))
    (row,) = rows(run("usage", "--config", str(path), "--by", "key,team,day", "--format", "json"))
    assert (row["key"], row["team"], row["day"], row["requests"]) == ("k", "crew", "2026-01-01", 250)


@pytest.mark.parametrize(
    ("shape", "shown"),
    [("table", "Nothing was used.\n"), ("csv", ",".join(["key", *USAGE_COLUMNS]) + "\n"), ("json", "[]\n")],
)
def test_looking_makes_no_store(tmp_path: Path, shape: str, shown: str) -> None:
    file = written(tmp_path, f"embedded:{tmp_path / 'not' / 'there'}")
    done = run("usage", "--config", file, "--format", shape)
    assert (done.returncode, done.stdout) == (0, shown)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"gateway: nothing is recorded yet: there is no {tmp_path / 'not' / 'there'}")
    assert [path.name for path in tmp_path.iterdir()] == ["gateway.yaml"]


def test_empty_folder_stays_empty(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    done = run("usage", "--config", written(tmp_path, f"embedded:{tmp_path / 'data'}"))
    assert (done.returncode, done.stdout) == (0, "Nothing was used.\n")
    assert list((tmp_path / "data").iterdir()) == []


# ----------------------------------------------------------------------------------------------- what a person can mend


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--by", "colour"], "argument --by: 'colour' is not one of key, team, model, upstream, endpoint, day, month"),
        (["--by", "key,secret"], "argument --by: 'secret' is not one of key"),
        (["--since", "yesterday"], "argument --since: expected a day such as 2026-11-20"),
        (["--since", ""], "argument --since: expected a day such as 2026-11-20"),
        (["--until", "2026-1-1"], "argument --until: expected a day such as 2026-11-20"),
        (["--by", "user", "--upstream", "main"], "argument --upstream: sums by user are not kept by upstream"),
        (["--since", "3000000d"], "argument --since: expected a time back from now such as 7d"),
        (["--since", "2026-11-20", "--until", "2026-11-19"], "argument --until: 2026-11-19 is before --since"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_question_that_makes_no_sense(tmp_path: Path, arguments: list[str], words: str) -> None:
    file = written(tmp_path, f"embedded:{tmp_path / 'data'}")
    says(run("usage", "--config", file, *arguments), 2, f"gateway: {words}")


def test_an_unknown_format(tmp_path: Path) -> None:
    done = run("usage", "--config", written(tmp_path, f"embedded:{tmp_path}"), "--format", "xml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "argument --format: invalid choice: 'xml'" in done.stderr


def test_configuration_has_to_be_good(tmp_path: Path) -> None:
    file = written(tmp_path, f"embedded:{tmp_path / 'data'}", nonsense=1)
    says(run("usage", "--config", file), 2, f"gateway: {file}:", ": nonsense: there is no such setting")


def test_server_that_is_away(tmp_path: Path) -> None:
    where = f"127.0.0.1:{dead_port()}"
    done = run("usage", "--config", written(tmp_path, f"redis://gateway:{PASSWORD}@{where}/0"))
    says(done, 1, f"gateway: cannot read the usage: redis://{where}/0 cannot be reached: ")


def test_server_that_wants_another_password(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "server", password="another-password-of-the-store") as server:
        file = written(tmp_path, server.url_for("", PASSWORD))
        says(run("usage", "--config", file), 1, f"127.0.0.1:{server.port}")


def test_file_that_is_no_store(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "gateway.sqlite").write_bytes(b"This is no database, and it is long enough to be looked at. " * 100)
    says(
        run("usage", "--config", written(tmp_path, f"embedded:{folder}")),
        1,
        f"gateway: cannot read the usage: embedded:{folder}: ",
    )


def test_file_that_another_program_keeps_locked(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    plant(f"embedded:{folder}", [record("2026-01-01", "k")])
    with contextlib.closing(sqlite3.connect(folder / "gateway.sqlite", isolation_level=None)) as selfish:
        selfish.execute("PRAGMA locking_mode = EXCLUSIVE")
        selfish.execute("BEGIN EXCLUSIVE")
        says(run("usage", "--config", written(tmp_path, f"embedded:{folder}")), 1, f"embedded:{folder}: ", "locked")


# ------------------------------------------------------------------------------------------------- who reads the report


def test_reader_that_has_seen_enough(tmp_path: Path) -> None:
    """`gateway usage | head -1`, when head is gone before the report comes."""
    reading, writing = os.pipe()
    os.close(reading)
    file = written(tmp_path, f"embedded:{tmp_path / 'data'}")
    plant(f"embedded:{tmp_path / 'data'}", [record("2026-01-01", "k")])
    try:
        done = subprocess.run(
            command("usage", "--config", file),
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_disk_that_is_full(tmp_path: Path) -> None:
    file = written(tmp_path, f"embedded:{tmp_path / 'data'}")
    with (tmp_path / "report.csv").open("wb") as report:
        done = subprocess.run(
            command("usage", "--config", file, "--format", "csv"), stdout=report, stderr=subprocess.PIPE, text=True,
            timeout=120, check=False, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "gateway: cannot write the report: file too large"
    assert "Traceback" not in done.stderr
