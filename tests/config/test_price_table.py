"""Prices from the table: which models have them, in which form, and at whose cost they are imported."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelInfo, Provider
from genai_prices.types import Usage as TheirUsage

from gateway.config import ConfigError, ModelTable, Price, build
from gateway.config.diff import changes
from gateway.config.price_table import (
    HOSTS,
    MINIMUM_CHARGE,
    ROWS,
    PriceTable,
    Unpriced,
    provider_of,
    with_table_prices,
)
from gateway.config.rates import variant_of
from gateway.config.source import Source
from gateway.quota.pricing import cost_nusd, read_price, record_text
from gateway.records import Usage
from gateway.units import UNITS, counts, total

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
TABLE = PriceTable(NOW)
OPENAI = {"base_url": "https://api.openai.com/v1"}
ROUTE = [{"upstream": "up"}]


def filled(models: Any, upstreams: Any = None, **more: Any) -> dict[str, Any]:
    return with_table_prices({"upstreams": upstreams or {"up": OPENAI}, "models": models, **more}, NOW)


# --------------------------------------------------------------------------------------------------------- who has them


@pytest.mark.parametrize(("host", "provider"), sorted(HOSTS.items()))
def test_the_package_knows_our_hosts_by_the_same_names(host: str, provider: str) -> None:
    assert get_snapshot().find_provider(None, None, f"https://{host}/v1").id == provider


@pytest.mark.parametrize(
    ("upstream", "provider"),
    [
        (OPENAI, "openai"),
        ({"base_url": "https://API.OpenAI.com:443/v1"}, "openai"),
        ({"base_url": "https://api.openai.com.example/v1"}, None),
        ({"base_url": "https://eu.api.openai.com/v1"}, None),  # a regional address costs more
        ({"base_url": "https://reseller.example/v1"}, None),
        ({"base_url": "https://reseller.example/v1", "provider": "openai"}, "openai"),
        ({**OPENAI, "provider": "x-ai"}, "x-ai"),
        ({"base_url": "https://[::1/v1"}, None),
        ({"base_url": 5}, None),
        ({}, None),
    ],
)
def test_provider(upstream: dict[str, Any], provider: str | None) -> None:
    assert provider_of(upstream) == provider


GPT = {"routes": ROUTE, "max_output_tokens": 100}


@pytest.mark.parametrize(
    ("model", "source"),
    [
        ({}, "table"),
        ({"price": "auto"}, "table"),
        ({"price": "auto", "unpriced": "allow"}, "table"),
        ({"price": {"input": 1, "output": 2}}, None),
        ({"price": None}, ""),
        ({"unpriced": "allow"}, ""),  # chosen before there was a table: its calls draw on no quota of money
        ({"routes": [{"upstream": "up"}, {"upstream": "reseller"}]}, ""),
        ({"routes": [{"upstream": "up", "model": "gpt-4o-mini"}, {"upstream": "up"}]}, ""),  # they cost differently
        ({"routes": [{"upstream": "up", "model": "no-such-model"}]}, ""),
        ({"routes": [{"upstream": "nowhere"}]}, ""),
    ],
)
def test_which_models_have_the_tables_price(model: dict[str, Any], source: str | None) -> None:
    upstreams = {"up": OPENAI, "reseller": {"base_url": "https://reseller.example/v1"}}
    price = filled({"gpt-4o": {**GPT, **model}}, upstreams)["models"]["gpt-4o"].get("price")
    if source == "table":
        assert price["source"] == f"table {TABLE.name}"
        assert (price["input"], price["output"]) == ("2.5", "10")
    else:
        assert (price or {"source": ""}).get("source") == source


def test_defaults_of_models_are_theirs() -> None:
    own = {"input": 1, "output": 2}
    assert "price" not in filled({"gpt-4o": GPT}, defaults={"models": {"price": own}})["models"]["gpt-4o"]
    assert "price" not in filled({"gpt-4o": GPT}, defaults={"models": {"price": None}})["models"]["gpt-4o"]
    assert (
        filled({"gpt-4o": GPT}, defaults={"models": {"price": "auto"}})["models"]["gpt-4o"]["price"]["input"] == "2.5"
    )


def test_names_under_a_pattern_have_their_own_price() -> None:
    models = {
        "openai/*": {**GPT, "strip_prefix": "openai/"},
        "o-*": {**GPT, "routes": [{"upstream": "up", "model": "o3"}]},
    }
    table = ModelTable(build(filled(models)).models)
    found = {
        name: table.find(name) for name in ("openai/gpt-4o", "openai/gpt-4o-2024-11-20", "openai/gpt-4o-foo", "o-x")
    }
    costs = [each and cost_nusd(each.model.price, Usage(1_000_000), NOW.timestamp()) for each in found.values()]
    assert costs == [2_500_000_000, 2_500_000_000, None, 2_000_000_000]


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"upstreams": {"up": {**OPENAI, "provider": "opnai"}}, "models": {"m": GPT}}, "upstreams.up.provider"),
        (
            {"upstreams": {"up": {"base_url": "https://x.example"}}, "models": {"m": {**GPT, "price": "auto"}}},
            "models.m.price",
        ),
        ({"models": {"m": {**GPT, "price": {"input": 1, "output": 1, "source": "me"}}}}, "models.m.price.source"),
        ({"models": {"m": {**GPT, "table_prices": {}}}}, "models.m.table_prices"),
    ],
)
def test_faults(values: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_table_prices({"upstreams": {"up": OPENAI}, **values}, NOW)
    assert [fault.path for fault in caught.value.faults] == [path]


@pytest.mark.parametrize("values", [{}, {"models": 5}, {"models": {"m": 5}}, {"upstreams": [1], "models": {"m": GPT}},
                                    {"models": {"m": {"routes": 7}}}, {"models": {5: GPT}}])  # fmt: skip
def test_what_is_no_configuration_is_left_for_its_checks(values: dict[str, Any]) -> None:
    assert with_table_prices(values, NOW) == values


def test_the_workers_build_what_the_parent_read() -> None:
    """Plain values are sent as JSON, and say the source of each price."""
    values = filled({"gpt-4o": GPT, "gpt-5.6": GPT, "*": GPT})
    one, other = build(values), build(json.loads(json.dumps(values)))
    assert one == other
    assert not changes(one, other)
    price = one.models["gpt-5.6"].price
    assert read_price(record_text(price, Usage(300_000), NOW.timestamp()) or "").above == 272_000
    assert read_price(record_text(price, Usage(3), NOW.timestamp()) or "").source == f"table {TABLE.name}"


def test_a_new_table_is_a_change_that_a_reload_reports() -> None:
    values = filled({"gpt-4o": GPT})
    before = build(values)
    values["models"]["gpt-4o"]["price"]["source"] = "table genai-prices 9"
    (change,) = changes(before, build(values))
    assert str(change) == f'models."gpt-4o".price.source: "table {TABLE.name}" -> "table genai-prices 9"'


RUN = """
import json, sys
from gateway.config.source import Source
Source(sys.argv[1], {}).read()
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.rest
@pytest.mark.parametrize(
    ("line", "is_imported"),
    [
        ("models: {gpt-4o: {routes: [{upstream: u}], max_output_tokens: 9}}", True),
        ("models: {gpt-4o: {routes: [{upstream: u}], max_output_tokens: 9, price: {input: 1, output: 1}}}", False),
        ("models: {gpt-4o: {routes: [{upstream: u}], max_output_tokens: 9, price: null}}", False),
    ],
)
def test_the_table_is_imported_where_a_model_needs_it(line: str, is_imported: bool, tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(f"upstreams: {{u: {{base_url: 'https://api.openai.com/v1'}}}}\n{line}\n")
    done = subprocess.run([sys.executable, "-c", RUN, str(file)], capture_output=True, text=True, check=True)
    assert ("genai_prices" in json.loads(done.stdout)) is is_imported


@pytest.mark.rest
def test_a_worker_does_not_import_it() -> None:
    values = json.dumps(filled({"gpt-4o": GPT, "*": GPT}))
    program = (
        "import json, sys; from gateway.process import worker; from gateway.config import build; "
        "config = build(json.loads(sys.stdin.read())); assert config.models['gpt-4o'].price.plan; "
        "print('genai_prices' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], input=values, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_file_is_read_with_them(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(
        "upstreams: {u: {base_url: 'https://api.openai.com/v1'}, bad: {provider: nobody}}\n"
        "models: {gpt-4o: {routes: [{upstream: u}], colour: red}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        Source(str(file), os.environ).read()
    places = {fault.path for fault in caught.value.faults}
    assert places == {"upstreams.bad.provider", "upstreams.bad.base_url", "models.gpt-4o.colour"}


# ------------------------------------------------------------------------------------- the package's own calculation


OURS: dict[str, str] = {
    "cache_write": "cache_write_tokens", "cache_write_1h": "cache_write_1h_tokens", "audio_in": "input_audio_tokens",
    "audio_out": "output_audio_tokens", "image_in": "input_image_tokens", "image_out": "output_image_tokens",
    "web_searches": "web_searches", "file_searches": "storage_searches", "characters": "input_characters",
    "search_units": "rerank_searches", "video_in": "input_video_tokens", "video_out": "output_video_tokens",
    "cached_audio": "cache_audio_read_tokens", "cached_image": "cache_image_read_tokens",
    "citations": "output_citation_tokens",
}  # fmt: skip
PROVIDERS = ("anthropic", "azure", "deepseek", "google", "groq", "mistral", "openai", "x-ai")
MODELS_OF_EACH = 7
USAGES_OF_EACH = 40
MOMENTS = ("2026-11-23T00:10", "2026-11-23T02:30", "2026-11-23T12:00", "2026-11-30T23:59", "2026-12-01T00:00",
           "2027-03-01T09:59")  # fmt: skip


def theirs(used: Usage) -> TheirUsage:
    """Our usage in the package's words. It counts a part in its whole as well, as we do, and cached sound in all sound,
    which we do not."""
    more = {OURS[name]: count for name, count in used.more if name in OURS}
    for kind in ("audio", "image"):
        if cached := more.setdefault(f"cache_{kind}_read_tokens", 0):
            more[f"input_{kind}_tokens"] = more.get(f"input_{kind}_tokens", 0) + cached
    if "cache_write_1h_tokens" in more:
        more["cache_write_tokens"] = more.get("cache_write_tokens", 0) + more["cache_write_1h_tokens"]
    if milliseconds := dict(used.more).get("audio_ms"):
        more["audio_seconds"] = more["input_audio_seconds"] = Decimal(milliseconds) / 1000  # type: ignore[assignment]
    return TheirUsage(
        input_tokens=used.prompt_tokens, output_tokens=used.completion_tokens, cache_read_tokens=used.cached_tokens,
        output_reasoning_tokens=used.reasoning_tokens, **more,
    )  # fmt: skip


def random_usage(choose: random.Random, price: Price, variants: list[str]) -> Usage:
    """One that the package can price: parts within their whole, and cached sound or images where it has a price for
    these, else it charges them as sound and as cached tokens."""
    near_a_tier = choose.choice([128_000, 200_000, 272_000]) + choose.randint(-1, 2)
    prompt = choose.choice([0, 1, choose.randrange(5_000), near_a_tier, choose.randrange(600_000)])
    completion = choose.choice([0, 1, choose.randrange(100_000)])
    more: dict[str, int] = {}
    left, out = prompt, completion
    for unit in choose.sample(sorted(set(UNITS) - {"cached_audio", "cached_image"}), choose.choice([0, 0, 1, 2, 4])):
        part_of = UNITS[unit].part_of
        if part_of == "prompt":
            more[unit] = choose.randint(0, left)
            left -= more[unit]
        elif part_of == "completion":
            more[unit] = choose.randint(0, out)
            out -= more[unit]
        elif unit in OURS or unit == "audio_ms":
            more[unit] = choose.randrange(3)
    cached = free = choose.randint(0, left)
    for unit in ("cached_audio", "cached_image"):
        if getattr(price, unit) is not None:
            more[unit] = choose.choice([0, choose.randint(0, free)])
            free -= more[unit]
    reasoning = 0 if any(more.get(unit) for unit in ("audio_out", "image_out")) else choose.randint(0, out)
    return Usage(prompt, completion, cached, reasoning, "reported", counts(more), choose.choice(variants))


def has_price(prices: Any, unit: str) -> bool:
    """Whether the package has a price for this unit."""
    keys = {key for key, (row, _) in ROWS.items() if row == _ROW_OF.get(unit, unit)}
    return any(getattr(prices, key, None) is not None for key in keys)


def is_silent(used: Usage, prices: Any) -> bool:
    """Whether the package charges nothing for something that was used."""
    more = dict(used.more)

    def rest(whole: int, part_of: str, known: int) -> int:
        """Tokens without a price of their own."""
        own = [count for unit, count in more.items() if UNITS[unit].part_of == part_of and has_price(prices, unit)]
        return whole - known - sum(own)

    cached = used.cached_tokens if prices.cache_read_mtok is not None else 0
    reasoning = used.reasoning_tokens if prices.output_reasoning_mtok is not None else 0
    return (
        (prices.input_mtok is None and rest(used.prompt_tokens, "prompt", cached) > 0)
        or (prices.output_mtok is None and rest(used.completion_tokens, "completion", reasoning) > 0)
        or any(not has_price(prices, unit) for unit in more if UNITS[unit].part_of is None)
    )


_ROW_OF = {
    "web_searches": "web_searches_per_1000", "file_searches": "file_searches_per_1000",
    "characters": "characters_per_million", "search_units": "search_units_per_1000", "audio_ms": "audio_per_hour",
}  # fmt: skip
CONTEXTS = {"batch": {"processing": "batch"}, "fast": {"service_tier": "fast"}}


def chosen() -> Iterator[tuple[str, str]]:
    choose = random.Random("models")
    for provider in PROVIDERS:
        names = [name for name in TABLE.names(provider) if not isinstance(TABLE.find(provider, name), Unpriced)]
        yield from [(provider, name) for name in sorted(choose.sample(sorted(names), MODELS_OF_EACH))]


def found(provider: str, name: str) -> tuple[Provider, ModelInfo]:
    return get_snapshot().find_provider_model(name, None, provider, None)


def test_there_are_as_many_as_promised() -> None:
    assert len({provider for provider, _ in chosen()}) >= 8
    assert len(list(chosen())) >= 50
    assert len(list(chosen())) * USAGES_OF_EACH >= 1000


@pytest.mark.parametrize(("provider", "name"), list(chosen()))
def test_our_cost_is_theirs_to_a_billionth(provider: str, name: str) -> None:
    """Where the package charges nothing for a unit that was used, for want of a price, ours is unknown."""
    choose = random.Random(f"{provider}/{name}")
    price = Price.model_validate(TABLE.find(provider, name))
    at, model = found(provider, name)
    variants = ["", "default", *[name for name in price.variants if "us" not in name.split("-")]]
    known = 0
    for _ in range(USAGES_OF_EACH):
        moment = datetime.fromisoformat(choose.choice(MOMENTS)).replace(tzinfo=UTC)
        used = random_usage(choose, price, variants)
        ours = cost_nusd(price, used, moment.timestamp())
        context = CONTEXTS.get(used.variant, {"service_tier": used.variant}) if used.variant else {}
        if used.variant == "fast" and any(each.when == {"speed": "fast"} for each in model.price_variants or ()):
            context = {"speed": "fast"}
        calculated = model.calc_price(theirs(used), at, genai_request_timestamp=moment, price_context=context)
        charged = calculated.model_price
        if is_silent(used, charged):
            assert ours is None, (used, charged)
            continue
        known += 1
        assert ours is not None, (used, charged)
        assert 0 <= ours - calculated.total_price * 10**9 < 1, (used, charged, ours, calculated.total_price)
    assert known or price.input is None


def test_tokens_of_a_region_cost_more_at_anthropic() -> None:
    """platform.claude.com, "Data residency": 1.1 times, on tokens alone, since Claude Opus 4.6."""
    price = Price.model_validate(TABLE.find("anthropic", "claude-opus-5"))
    tokens = Usage(1_000_000, 1_000_000, 100_000, more=counts({"cache_write": 200_000, "cache_write_1h": 50_000}))
    searched = tokens._replace(more=total([tokens.more, counts({"web_searches": 1000})]))
    for service in ("", "batch", "fast"):
        region = variant_of(service, "us")
        usual, dearer = (cost_nusd(price, tokens._replace(variant=name)) for name in (service, region))
        assert usual is not None
        assert dearer is not None
        assert dearer * 10 == usual * 11
        assert cost_nusd(price, searched._replace(variant=region)) == dearer + 10 * 10**9
    old = Price.model_validate(TABLE.find("anthropic", "claude-3-7-sonnet-latest"))
    assert cost_nusd(old, tokens._replace(variant="us")) == cost_nusd(old, tokens)
    assert not [name for name in Price.model_validate(TABLE.find("openai", "gpt-5")).variants if "us" in name]


def test_a_minimum_charge_is_unknown() -> None:
    for provider, model in sorted(MINIMUM_CHARGE):
        assert TABLE.find(provider, model) == Unpriced(f"each call of {model} has a minimum charge")


def test_prices_that_begin_on_a_day_follow_it() -> None:
    document = PriceTable(datetime(2026, 12, 31, tzinfo=UTC)).find("google", "gemini-3.6-flash")
    assert not isinstance(document, Unpriced)
    assert [later["starts"] for later in document["later"]] == ["2027-01-01"]
    assert "later" not in PriceTable(datetime(2027, 1, 1, tzinfo=UTC)).find("google", "gemini-3.6-flash")
