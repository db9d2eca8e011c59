"""`gateway prices`, and what `gateway check` says of prices."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from gateway import cli

TABLE = f"table genai-prices {version('genai-prices')}"
TEXT = """
store: {url: "embedded:FOLDER/data", journal_dir: "FOLDER/journal"}
upstreams:
  up: {base_url: "https://api.openai.com/v1"}
  reseller: {base_url: "https://reseller.example/v1"}
aliases: {fast: gpt-4o-mini}
models:
  gpt-4o-mini: {routes: [{upstream: up}]}
  gpt-5.6: {routes: [{upstream: up}]}
  own: {routes: [{upstream: up}], price: {input: 1, output: 2, tiers: [{above: 100, input: 3}]}}
  gpt-4.1: {routes: [{upstream: up}], price: null}
  gpt-4o: {routes: [{upstream: up}], unpriced: allow}
  typo: {routes: [{upstream: up}]}
  elsewhere: {routes: [{upstream: reseller}]}
  "o*": {routes: [{upstream: up}]}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "gateway.yaml"
    path.write_text(TEXT.replace("FOLDER", str(tmp_path)))
    return str(path)


def test_check_says_how_many_models_the_table_prices(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", "--config", file]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  prices ")]
    assert line.split(maxsplit=1)[1] == (
        f"3 of 8 by the {TABLE}; 1 of 8 configured; unknown: gpt-4.1 (price: null), gpt-4o (unpriced: allow), "
        "typo (the table has no such model of openai), "
        "elsewhere (the provider of upstream reseller is not known: set its provider, or a price)"
    )


def test_the_prices_of_all_models(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["prices", "--config", file, "--format", "json"]) == 0
    rows = {row["model"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["own"] == {
        "model": "own", "input": 1, "cached_input": None, "output": 2, "further": "tiers", "source": "configured",
    }  # fmt: skip
    assert (rows["gpt-4o-mini"]["input"], rows["gpt-4o-mini"]["source"]) == (0.15, TABLE)
    assert rows["typo"]["source"] == "unknown: the table has no such model of openai"
    assert cli.main(["prices", "--config", file]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["model", "source", "further", "input", "cached_input", "output"]
    assert table[4].split() == ["own", "configured", "tiers", "1", "-", "2"]


@pytest.mark.parametrize(
    ("model", "lines"),
    [
        ("own", ["own: configured", "  standard: input 1, output 2",
                 "  standard, prompts above 100 tokens: input 3, output 2"]),
        ("typo", ["typo: unknown: the table has no such model of openai"]),
        ("o3", [f"o3: {TABLE}"]),
        ("o-unheard-of", ["o-unheard-of: unknown: its pattern has prices only for the names that the table lists"]),
        ("fast", [f"gpt-4o-mini: {TABLE}"]),
    ],
)  # fmt: skip
def test_the_prices_of_one_model(model: str, lines: list[str], file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["prices", model, "--config", file]) == 0
    assert capsys.readouterr().out.splitlines()[: len(lines)] == lines


def test_what_is_not_served_has_no_price(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["prices", "claude", "--config", file]) == 2
    assert "serves no model 'claude'" in capsys.readouterr().err


def test_the_providers_of_the_table(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["prices", "--providers", "--config", file]) == 0
    assert {"openai", "anthropic", "x-ai"} <= set(capsys.readouterr().out.split())
