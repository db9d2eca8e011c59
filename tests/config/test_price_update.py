"""`gateway prices update`, and a configuration that uses its file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from gateway import cli
from gateway.commands import prices as command
from gateway.config import ConfigError
from gateway.config.price_table import PriceTable
from gateway.config.source import Source


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def provider(name: str, *models: str, usd: float) -> dict[str, Any]:
    prices = {"input_mtok": usd, "output_mtok": {"base": 2 * usd, "tiers": [{"start": 1000, "price": 3 * usd}]}}
    return {
        "id": name, "name": name, "api_pattern": f"https://{name}",
        "models": [{"id": model, "match": {"equals": model}, "prices": prices} for model in models],
    }  # fmt: skip


def table(usd: float = 7.123456789) -> list[dict[str, Any]]:
    return [provider("openai", "gpt-4o", *[f"m-{number}" for number in range(100)], usd=usd)]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes | int]]:
    """What is at `/table` and with which status; `url` is where."""
    answer: dict[str, Any] = {"body": json.dumps(table()).encode(), "status": 200}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer["status"])
            self.end_headers()
            self.wfile.write(answer["body"])

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("no_proxy", "*")
    answer["url"] = f"http://127.0.0.1:{server.server_port}/table"
    yield answer
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "gateway.yaml"
    path.write_text(
        f"store: {{url: 'embedded:{tmp_path}/data', journal_dir: '{tmp_path}/journal'}}\n"
        f"prices: {{file: '{tmp_path}/prices.json'}}\n"
        "upstreams: {up: {base_url: 'https://api.openai.com/v1'}}\n"
        "models: {gpt-4o: {routes: [{upstream: up}]}}\n"
    )
    return str(path)


def price_of(config: str) -> tuple[str, str | None]:
    price = Source(config, os.environ).read().config.models["gpt-4o"].price
    assert price is not None
    return f"{price.input:f}", price.source


def test_the_file_counts_once_it_is_there(config: str, served: Any, capsys: pytest.CaptureFixture[str]) -> None:
    source = Source(config, os.environ)
    assert price_of(config)[1] == f"table {PriceTable(datetime.now(UTC)).name}"
    source.read()
    before = source.look()
    assert cli.main(["prices", "update", "--config", config, "--from", served["url"]]) == 0
    assert "has 101 names of models of 1 providers" in capsys.readouterr().out
    assert price_of(config) == ("7.123456789", f"table {today()}")
    assert source.look() != before  # which makes a running gateway reload
    assert cli.main(["prices", "gpt-4o", "--config", config]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"gpt-4o: table {today()}", "  standard: input 7.123456789, output 14.246913578",
        "  standard, prompts above 1,000 tokens: input 7.123456789, output 21.370370367",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"status": 404}, "cannot download"),
        ({"body": b"<html>"}, "is no price table"),
        ({"body": b'{"no": "list"}'}, "is no price table"),
        ({"body": json.dumps(table()[0]["models"]).encode()}, "is no price table"),
        ({"body": json.dumps([provider("openai", "gpt-4o", usd=1)]).encode()}, "has 1 models"),
        ({"body": b"[" + b" " * 300 + b"]"}, "more than 300 bytes"),
        ({"url": "file:///etc/passwd"}, "https://"),
        ({"url": "http://127.0.0.1:9/"}, "cannot download"),
    ],
)
def test_what_is_no_table_leaves_the_file(
    changed: dict[str, Any], says: str, config: str, served: Any, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert cli.main(["prices", "update", "--config", config, "--from", served["url"]]) == 0
    served |= changed
    if "300" in says:
        monkeypatch.setattr(command, "MAX_BYTES", 300)
    assert cli.main(["prices", "update", "--config", config, "--from", served["url"]]) == 1
    error = capsys.readouterr().err
    assert says in error
    assert "is unchanged" in error
    assert price_of(config)[0] == "7.123456789"
    assert [path.name for path in Path(config).parent.glob("*prices*")] == ["prices.json"]


def test_without_a_name_there_is_nothing_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("upstreams: {up: {base_url: 'https://x.example/v1'}}\nmodels: {m: {routes: [{upstream: up}]}}\n")
    assert cli.main(["prices", "update", "--config", str(path)]) == 2
    assert "prices.file is not set" in capsys.readouterr().err


def test_a_file_that_is_no_table_is_a_fault(config: str, tmp_path: Path) -> None:
    (tmp_path / "prices.json").write_text('{"date": "2026-11-23"}')
    with pytest.raises(ConfigError) as caught:
        Source(config, os.environ).read()
    (fault,) = caught.value.faults
    assert fault.path == "prices.file"
    assert "run gateway prices update" in fault.message
