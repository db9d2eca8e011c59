"""`gateway usage --compare`: the gateway's records against a provider's export, through a whole gateway.

The provider is the simulator. It records the calls that it served in its own ledger; its export is made from that.
"""

from __future__ import annotations

import csv
import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.records import Usage
from gateway.wings.billing.comparison import COLUMNS
from tests.conftest import StartsGateways, StartsProcesses
from tests.fakes.redis_servers import RedisServer
from tests.flows.client import request
from tests.flows.gateway_process import CHAT, COMPLETIONS, EMBEDDINGS, Gateway, eventually, model, run, settings
from tests.flows.planted import plant, record

Done = subprocess.CompletedProcess[str]

PRICES = {
    COMPLETIONS: {"input": 1.5, "output": 2},
    CHAT: {"input": 0.15, "output": 0.6},
    EMBEDDINGS: {"input": 0.02},
}

OPENAI = (
    "start_time", "end_time", "start_time_iso", "end_time_iso", "project_id", "num_model_requests", "user_id",
    "api_key_id", "model", "batch", "service_tier", "input_tokens", "output_tokens", "input_cached_tokens",
)  # fmt: skip


@pytest.fixture(params=["embedded", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a store is, or may be made."""
    if request.param == "embedded":
        yield f"embedded:{tmp_path / 'store'}"
        return
    with RedisServer(tmp_path / "redis") as server:
        yield server.url


class Provider:
    """The simulator, as who bills for what it has served."""

    def __init__(self, address: str) -> None:
        self.url = address
        self._port = int(address.split(":")[2].removesuffix("/v1"))

    def served(self) -> list[dict[str, Any]]:
        """What it has begun to generate, to the end or not."""

        def look() -> Any:
            ledger = request(self._port, "GET", "/simulator/ledger", None, {}).json
            return ledger if ledger["open"] == 0 else None

        ledger = eventually(look)
        return [call for call in ledger["calls"] if call["ended"] != "error"]

    def export(self, path: Path, snapshot: str = "") -> Path:
        """Its usage, as OpenAI exports it: a line for each day and model, and an empty one for a day without usage."""
        sums: dict[tuple[int, str], Counter[str]] = {}
        for call in self.served():
            day = int(call["time"] // 86400) * 86400
            of_model = sums.setdefault((day, call["model"] + snapshot), Counter())
            of_model.update(num_model_requests=1, input_tokens=call["prompt_tokens"])
            of_model.update(output_tokens=call["completion_tokens"])
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, OPENAI)
            writer.writeheader()
            first = min(day for day, _ in sums) - 86400
            writer.writerow(_times(first))
            for (day, name), numbers in sums.items():
                line = {"model": name, "batch": "FALSE", "input_cached_tokens": 0}
                writer.writerow({**_times(day), **line, **{name: f"{value}.0" for name, value in numbers.items()}})
        return path

    def bill(self, path: Path) -> Path:
        """Its costs, as OpenAI exports them: a line for each day, model and kind of token."""
        costs: Counter[tuple[int, str]] = Counter()
        for call in self.served():
            day, price = int(call["time"] // 86400) * 86400, PRICES[call["model"]]
            costs[day, f"{call['model']}, input"] += call["prompt_tokens"] * round(price["input"] * 1000)
            costs[day, f"{call['model']}, output"] += call["completion_tokens"] * round(price.get("output", 0) * 1000)
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["start_time", "end_time", "amount_value", "amount_currency", "line_item"])
            for (day, item), nusd in costs.items():
                writer.writerow([day, day + 86400, f"{nusd / 1e9:.20f}", "usd", item])
        return path


def _times(day: int) -> dict[str, Any]:
    iso = [datetime.fromtimestamp(at, UTC).isoformat() for at in (day, day + 86400)]
    return {"start_time": day, "end_time": day + 86400, "start_time_iso": iso[0], "end_time_iso": iso[1]}


@pytest.fixture
def provider(process: StartsProcesses) -> Provider:
    return Provider(process("simulate", "--port", "0").wait_for(r"serves (http://127\.0\.0\.1:\d+/v1)\n")[1])


@pytest.fixture
def gateway(start_gateway: StartsGateways, provider: Provider, url: str) -> Gateway:
    endpoints = {COMPLETIONS: "completions", CHAT: "chat", EMBEDDINGS: "embeddings"}
    models: dict[str, Any] = {name: model(endpoint, price=PRICES[name]) for name, endpoint in endpoints.items()}
    models["*"] = model("chat")
    config = settings(provider.url, store={"url": url}, models=models)
    return start_gateway(config)


def compare(gateway: Gateway, file: Path, *more: str) -> Done:
    return run("usage", "--config", str(gateway.file), "--compare", str(file), *more)


def rows(done: Done) -> dict[str, dict[str, Any]]:
    """The rows by model, added up over the days, of which there may be two: tests run at midnight, too."""
    assert done.returncode == 0, done
    found: dict[str, dict[str, Any]] = {}
    for row in json.loads(done.stdout):
        assert tuple(row) == COLUMNS
        known = found.setdefault(row["model"], row)
        if known is not row:
            known.update({name: known[name] + row[name] for name in row if isinstance(row[name], int | float)})
    return found


def differences(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[f"{name}_difference"] for name in ("requests", "prompt_tokens", "completion_tokens", "cost_usd")}


NONE = {"requests": 0, "prompt_tokens": 0, "completion_tokens": 0}


def use(gateway: Gateway) -> None:
    """Calls of every kind, and one that is refused before it comes to the provider."""
    statuses = [
        gateway.complete().status,
        gateway.complete("bob", max_tokens=40, n=2).status,
        gateway.chat(max_tokens=9).status,
        gateway.chat("carol").status,
        gateway.post("/v1/embeddings", {"model": EMBEDDINGS, "input": ["a b c", "d"]}).status,
        gateway.chat(model="gpt-4.1-mini").status,  # which the wildcard takes
    ]
    assert statuses == [200] * 6
    with gateway.stream(max_tokens=20) as raw:
        raw.read_head()
        raw.read_chunks()
    assert gateway.complete(n=200).status == 400
    eventually(lambda: len(gateway.calls()) >= 7)


def test_sums_agree_to_the_token(gateway: Gateway, provider: Provider, tmp_path: Path) -> None:
    use(gateway)
    found = rows(done := compare(gateway, provider.export(tmp_path / "usage.csv"), "--format", "json"))
    assert set(found) == {COMPLETIONS, CHAT, EMBEDDINGS, "gpt-4.1-mini"}
    for row in found.values():
        assert {name: value for name, value in differences(row).items() if name != "cost_usd"} == NONE
        assert (row["only"], row["estimated_tokens"], row["total_tokens_percent"]) == (None, 0, 0.0)
        assert (row["cost_usd_theirs"], row["cost_usd_difference"]) == (None, None)  # the file says nothing of money
    assert found[COMPLETIONS]["requests_ours"] == 3
    assert found["gpt-4.1-mini"]["unpriced"] == 1
    assert "(UTC) is not over, and both sides may still grow." in done.stderr


def test_failed_calls_are_no_requests(gateway: Gateway, provider: Provider, tmp_path: Path) -> None:
    """The provider counts what it answered; here as the pages of a reseller's log API."""
    use(gateway)
    assert gateway.complete(simulate={"status": 422}).status == 422
    assert gateway.complete(simulate={"status": 401}).status == 502
    eventually(lambda: len(gateway.calls()) >= 9)
    log = [
        {"created_at": int(call["time"]), "type": 2, "model_name": call["model"], "quota": 1,
         "prompt_tokens": call["prompt_tokens"], "completion_tokens": call["completion_tokens"]}
        for call in provider.served()
    ]  # fmt: skip
    pages = [json.dumps({"success": True, "data": {"total": len(log), "items": part}}) for part in (log[:3], log[3:])]
    file = tmp_path / "log.json"
    file.write_text("\n".join(pages))
    found = rows(compare(gateway, file, "--format", "json"))
    for row in found.values():
        assert {name: value for name, value in differences(row).items() if name != "cost_usd"} == NONE
    assert (found[COMPLETIONS]["requests_ours"], found[COMPLETIONS]["errors"]) == (3, 2)
    file.write_text(pages[0])
    done = compare(gateway, file, "--format", "json")
    assert done.returncode != 0
    assert "holds 3 of 7 entries; append the other pages of the log" in done.stderr


def test_costs_agree_to_the_nano(gateway: Gateway, provider: Provider, tmp_path: Path) -> None:
    assert [gateway.complete().status, gateway.chat().status, gateway.complete(max_tokens=33).status] == [200] * 3
    eventually(lambda: len(gateway.calls()) == 3)
    found = rows(compare(gateway, provider.bill(tmp_path / "costs.csv"), "--format", "json"))
    assert set(found) == {COMPLETIONS, CHAT}
    for row in found.values():
        assert row["cost_usd_theirs"] == row["cost_usd_ours"] > 0
        assert row["cost_usd_difference"] == 0
        assert (row["requests_theirs"], row["total_tokens_difference"]) == (None, None)


def test_unreported_usage_is_the_difference(gateway: Gateway, provider: Provider, tmp_path: Path) -> None:
    """A client that leaves in the middle: the provider bills what it has generated, and we have an estimate of it."""
    use(gateway)
    pace = {"tokens_per_s": 20}
    with gateway.stream("bob", max_tokens=400, simulate=pace, prompt="How long is a piece of string? " * 8) as raw:
        raw.read_head()
        raw.read_chunk()
    lost = eventually(lambda: next((call for call in gateway.calls("bob") if call["ended"] == "client_gone"), None))
    assert lost["usage_source"] == "estimated"
    (aborted,) = [call for call in provider.served() if call["ended"] == "aborted"]
    row = rows(compare(gateway, provider.export(tmp_path / "usage.csv"), "--format", "json"))[COMPLETIONS]
    assert row["requests_difference"] == 0
    assert row["prompt_tokens_difference"] == lost["prompt_tokens"] - aborted["prompt_tokens"]
    assert row["completion_tokens_difference"] == lost["completion_tokens"] - aborted["completion_tokens"]
    assert row["estimated_tokens"] == lost["prompt_tokens"] + lost["completion_tokens"]
    assert 0 < row["estimated_percent"] < 100


def test_call_that_the_provider_never_saw(gateway: Gateway, provider: Provider, url: str, tmp_path: Path) -> None:
    """A worker was killed: its call is charged its estimate, whatever the provider has recorded."""
    use(gateway)
    today = datetime.fromtimestamp(gateway.calls()[0]["time"], UTC).date().isoformat()
    gone = record(today, "bob", model=CHAT, label_model=CHAT, routed_model=CHAT, returned_model=None, ended="lost",
                  usage=Usage(100, 4096, source="estimated"), cost_nusd=2_472_600)  # fmt: skip
    plant(url, [gone])
    row = rows(compare(gateway, provider.export(tmp_path / "usage.csv"), "--format", "json"))[CHAT]
    assert (row["requests_difference"], row["prompt_tokens_difference"], row["completion_tokens_difference"]) == (
        1, 100, 4096,
    )  # fmt: skip
    assert row["estimated_tokens"] == 4196


def test_snapshots_stand_under_the_name_that_was_asked_for(
    gateway: Gateway, provider: Provider, tmp_path: Path
) -> None:
    assert gateway.chat().status == 200
    file = provider.export(tmp_path / "usage.csv", snapshot="-2024-07-18")

    def compared() -> Done | None:  # a lone worker's file has a call 0.1 s later
        done = compare(gateway, file, "--format", "json")
        return done if CHAT in rows(done) else None

    found = rows(done := eventually(compared))
    assert (set(found), found[CHAT]["names"]) == ({CHAT}, [CHAT, f"{CHAT}-2024-07-18"])
    assert (found[CHAT]["total_tokens_difference"], found[CHAT]["only"]) == (0, None)
    assert f"gateway: {CHAT} is also reported as {CHAT}, {CHAT}-2024-07-18." in done.stderr.splitlines()


# ------------------------------------------------------------------------------------------------- without a provider


def written(folder: Path, lines: Sequence[str]) -> Path:
    path = folder / "usage.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


HEAD = "date,model,requests,input_tokens,output_tokens,cost_usd"


@pytest.fixture
def books(tmp_path: Path, url: str) -> Path:
    """The configuration of a store with three calls of 10 + 5 tokens to two upstreams; no gateway runs."""
    plant(url, [
        record("2026-01-02", "alice", label_model="m", returned_model="m-0613", cost_nusd=250_000_000),
        record("2026-01-02", "alice", label_model="m", returned_model="m-0613", upstream="second", cost_nusd=None),
        record("2026-01-03", "bob", label_model="own", routed_model="n", returned_model=None, cost_nusd=3_000_000_000),
    ])  # fmt: skip
    file = tmp_path / "gateway.yaml"
    nowhere = "http://127.0.0.1:9/v1"
    file.write_text(yaml.safe_dump(settings(
        nowhere, store={"url": url}, upstreams={"second": {"base_url": nowhere}, "third": {"base_url": nowhere}},
    )))  # fmt: skip
    return file


def ask(file: Path, export: Path, *more: str) -> Done:
    return run("usage", "--config", str(file), "--compare", str(export), *more)


def test_table_with_all_that_has_to_be_said(books: Path, tmp_path: Path) -> None:
    export = written(tmp_path, [HEAD, "2026-01-01,m,1,1,1,1", "2026-01-02,m,1,10,5,0.25", "2026-01-04,n,1,1,1,1"])
    done = ask(books, export)
    assert (done.returncode, done.stderr) == (0, "")
    table, _, notes = done.stdout.partition("\n\n")
    lines = table.splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[1] == lines[-2]
    assert [line.split() for line in (*lines[2:-2], lines[-1])] == [
        ["2026-01-01", "m", "theirs", "0", "1", "0", "2", "-2", "-100.00", "0", "0.00", "1.00", "-1.00", "-100.00"],
        ["2026-01-02", "m", "2", "1", "30", "15", "+15", "+100.00", "0", "0.25", "0.25", "0.00", "0.00"],
        ["2026-01-03", "n", "ours", "1", "0", "15", "0", "+15", "-", "0", "3.00", "0.00", "+3.00", "-"],
        ["2026-01-04", "n", "theirs", "0", "1", "0", "2", "-2", "-100.00", "0", "0.00", "1.00", "-1.00", "-100.00"],
        ["total", "3", "3", "45", "19", "+26", "+136.84", "0", "3.25", "2.25", "+1.00", "+44.44"],
    ]
    assert notes.splitlines() == [
        "The gateway has usage from 2026-01-02 on; earlier days cannot be compared.",
        "The gateway's side includes the calls to main and second; --upstream selects one.",
        "m is also reported as m, m-0613.",
        "The cost of 1 of our requests is unknown, and in no sum.",
    ]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ([], [("2026-01-02", 2), ("2026-01-03", 1)]),
        (["--upstream", "main"], [("2026-01-02", 1), ("2026-01-03", 1)]),
        (["--upstream", "second"], [("2026-01-02", 1), ("2026-01-03", 0)]),
        (["--upstream", "main,second"], [("2026-01-02", 2), ("2026-01-03", 1)]),
        (["--upstream", "third"], [("2026-01-02", 0), ("2026-01-03", 0)]),
        (["--since", "2026-01-03"], [("2026-01-03", 1)]),
        (["--until", "2026-01-02"], [("2026-01-02", 2)]),
    ],
)
def test_a_part_of_the_records(books: Path, tmp_path: Path, arguments: list[str], found: list[tuple[str, int]]) -> None:
    export = written(tmp_path, [HEAD, "2026-01-02,m-0613,2,20,10,1", "2026-01-03,n,1,10,5,1"])
    done = ask(books, export, "--format", "csv", *arguments)
    assert done.returncode == 0
    assert [(row["day"], int(row["requests_ours"])) for row in csv.DictReader(done.stdout.splitlines())] == found
    if arguments[:1] in (["--since"], ["--until"]):
        assert "gateway: The provider's file covers 2026-01-02 to 2026-01-03; compared: " in done.stderr


def test_names_of_old_calls_are_those_of_the_routes(tmp_path: Path, url: str) -> None:
    """Their records are forgotten, and only the sums are left."""
    plant(url, [record("2026-01-02", "a", label_model="fast", returned_model="m-0613", cost_nusd=1)], namespace="old")
    newer = [record("2026-01-03", "a", label_model="m", returned_model="m") for _ in range(1500)]
    plant(url, newer, namespace="old", usage_records_max=1)
    file = tmp_path / "gateway.yaml"
    models = {"fast": model("completions", routes=[{"upstream": "main", "model": "m"}]), "m": model("completions")}
    store = {"url": url, "namespace": "old", "usage_records_max": 1}
    file.write_text(yaml.safe_dump(settings("http://127.0.0.1:9/v1", store=store, models=models)))
    export = written(tmp_path, [HEAD, "2026-01-02,m-0613,1,10,5,1", "2026-01-03,m,1500,15000,7500,1"])
    found = json.loads(ask(file, export, "--format", "json").stdout)
    assert [(row["model"], row["requests_difference"], row["total_tokens_difference"]) for row in found] == [
        ("m", 0, 0), ("m", 0, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "arguments", "said"),
    [
        ([HEAD, "2026-01-02,m,1,1,1,1"], ["--by", "key"], ["argument --by: a comparison is always by day and model"]),
        (
            [HEAD, "2026-01-02,m,1,1,1,1"],
            ["--upstream", "main,fourth"],
            ["argument --upstream: there is no upstream 'fourth'; there are: main, second, third"],
        ),
        ([HEAD, "2026-01-02,m,1,1,1,1"], ["--since", "soon"], ["argument --since: expected a day such as 2026-11-20"]),
        (
            [HEAD, "2026-01-02,m,1,1,1,1", "2026-01-02,m,x,1,1,1", "2026-01-02,m,1,1,1,1", "never,m,1,1,1,1"],
            [],
            ["FILE: line 3: requests: 'x' is no number", "FILE: line 5: date: 'never' is no time"],
        ),
        (
            ["who,what", "a,b"],
            [],
            ["FILE: found the columns who, what", "FILE: expected a time (start_time, start_time_iso, "],
        ),
    ],
)
def test_what_a_person_can_mend(
    books: Path, tmp_path: Path, lines: list[str], arguments: list[str], said: list[str]
) -> None:
    export = written(tmp_path, lines)
    done = ask(books, export, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    received = done.stderr.replace(str(export), "FILE").splitlines()
    assert len(received) == len(said)
    for line, words in zip(received, said, strict=True):
        assert line.startswith(f"gateway: {words}")


def test_upstream_alone_narrows_the_report(books: Path) -> None:
    done = run("usage", "--config", str(books), "--by", "upstream", "--upstream", "main", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [row["upstream"] for row in json.loads(done.stdout)] == ["main"]


@pytest.mark.parametrize("kind", ["missing", "a folder", "no text"])
def test_file_that_cannot_be_read(books: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "usage.csv"
    if kind == "a folder":
        path.mkdir()
    elif kind == "no text":
        path.write_bytes(b"date,model,requests\n2026-01-02,\xff\xfe,1\n")
    done = ask(books, path)
    assert (done.returncode, done.stdout) == (2, "")
    reason = {"missing": "no such file", "a folder": "is a directory", "no text": "is not UTF-8 text"}[kind]
    assert done.stderr.startswith(f"gateway: {path}: ")
    assert reason in done.stderr


def test_file_with_a_byte_order_mark(books: Path, tmp_path: Path) -> None:
    path = tmp_path / "usage.csv"
    path.write_text(f"{HEAD}\n2026-01-03,n,1,10,5,3\n", encoding="utf-8-sig")
    (row,) = json.loads(ask(books, path, "--format", "json").stdout)
    assert (row["model"], row["total_tokens_difference"], row["cost_usd_difference"]) == ("n", 0, 0)


@pytest.mark.parametrize(("shape", "shown"), [("table", "Nothing was used.\n"), ("json", "[]\n")])
def test_file_without_a_day(books: Path, tmp_path: Path, shape: str, shown: str) -> None:
    done = ask(books, written(tmp_path, [HEAD]), "--format", shape)
    assert (done.returncode, done.stdout.partition("\n")[0]) == (0, shown.strip())
    assert "The provider's file contains no day to compare." in done.stdout + done.stderr


def test_looking_makes_no_store(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump(settings("http://127.0.0.1:9/v1", store={"url": f"embedded:{tmp_path / 'none'}"})))
    yesterday = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
    done = ask(file, written(tmp_path, [HEAD, f"{yesterday},m,1,1,1,1"]), "--format", "json")
    assert done.returncode == 0
    assert [row["only"] for row in json.loads(done.stdout)] == ["theirs"]
    assert done.stderr.splitlines() == [
        f"gateway: nothing is recorded yet: there is no {tmp_path / 'none' / 'gateway.sqlite'}",
        "gateway: The gateway has no usage recorded.",
    ]
    assert not (tmp_path / "none").exists()
