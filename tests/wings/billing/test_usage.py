"""`gateway usage --compare`: notes beside the comparison, and files that go from one gateway to another."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.config.source import Source
from gateway.quota.ledger_entry import SUMS
from gateway.reports.csv_text import csv_text
from gateway.store import Store
from gateway.wings.billing import comparison
from gateway.wings.billing.invoice import read_export
from gateway.wings.billing.question import Question, ask
from tests.reports.test_csv_text import NAMES, has_no_formula

DAY = "2026-11-20"


class _OneModel:
    """A store in which one model was used."""

    async def usage_by_returned_model(self, since: str, until: str) -> list[dict[str, Any]]:
        return []

    async def usage(self, groups: Any, *_: Any) -> list[dict[str, Any]]:
        sums = dict.fromkeys(SUMS, 1) | {"cost_usd": 1.0}
        return [{"day": DAY, "model": "gpt-4o-mini", "upstream": "up", **sums}] if "model" in groups else []


async def test_a_comparison_says_which_prices_are_the_tables(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(f"""
store: {{url: "embedded:{tmp_path}/data", journal_dir: "{tmp_path}/journal"}}
upstreams: {{up: {{base_url: "https://api.openai.com/v1"}}}}
models: {{gpt-4o-mini: {{routes: [{{upstream: up}}]}}}}
""")
    config = Source(str(file), {}).read().config
    export = read_export(["date,model,input_tokens,output_tokens,num_model_requests", f"{DAY},gpt-4o-mini,1,1,1"])
    question = Question(export, (), None, None)
    found = await ask(cast(Store, _OneModel()), question, config.models)
    table = f"table genai-prices {version('genai-prices')}"
    price = f"Prices of gpt-4o-mini are from the {table} now; each call keeps the price that it was charged at."
    assert price in found.notes


@pytest.mark.parametrize("name", NAMES)
def test_no_cell_of_a_comparison_begins_like_a_formula(name: str) -> None:
    pair = {**dict.fromkeys(comparison.COLUMNS), "model": name, "names": [name], "cost_usd_upstream": -1.5}
    has_no_formula(comparison.format_csv([pair]), name)


def test_an_exported_file_can_be_compared() -> None:
    """Names of Cloudflare's models begin with `@`."""
    name = "@cf/meta/llama-3.1-8b-instruct"
    rows = [{"day": "2026-11-01", "model": name, "requests": 1, "prompt_tokens": 2, "cost_usd": 0.5}]
    text = csv_text(["day", "model", "requests", "prompt_tokens", "cost_usd"], rows)
    assert f"'{name}" in text
    assert list(read_export(text.splitlines(keepends=True)).tallies) == [("2026-11-01", name)]
