"""A variant of a model (quality, size, resolution, service, length) without a row never has the base price."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime
from typing import Any, get_args

import pytest
import yaml

from gateway.config import Model, Price, Route, build
from gateway.config.price_table import PriceTable
from gateway.config.rates import DEAR_OR_CHEAP, REGIONS, UNSTATED_IMAGE
from gateway.formats.table import FORMATS
from gateway.quota import pricing, windows
from gateway.records import Call, Document, Endpoint, Key, Params, Usage
from gateway.units import counts
from gateway.wings.tasks.notation import holds, read_options
from gateway.wings.tasks.settings import rows_of
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes import forms
from tests.fakes.scripted import ok_json
from tests.flows.gateway_process import Gateway, key, settings
from tests.flows.task_rows import ROWS

QUALITIES = (None, "auto", "standard", "hd", "low", "medium", "high")
SIZES = (None, "auto", "256x256", "1024x1024", "1792x1024", "1024x1792")
RESOLUTIONS = (None, "auto", "1k", "2K", "1.5k")
IMAGES: tuple[Endpoint, ...] = tuple(name for name in get_args(Endpoint) if name.startswith("image"))
ROWS_OF_IMAGES = {"hd-1024x1792": 0.12, "standard-1024x1024": 0.04, "auto-2k": 0.08}
BY_VARIANT = Price.model_validate(
    {"image": 0.04, "variants": {name: {"image": usd} for name, usd in ROWS_OF_IMAGES.items()}}
)
FLAT = Price.model_validate({"image": 0.04, "variants": {"batch": {"image": 0.02}}})
TWO = counts({"images": 2})
SERVICES = sorted(DEAR_OR_CHEAP - REGIONS)


def params_of(endpoint: Endpoint, asked: dict[str, Any]) -> Params:
    spec = FORMATS[endpoint]
    asked = {"model": "m", **asked}
    if endpoint == "images":
        return spec.read(json.dumps(asked | {"prompt": "a cat"}).encode(), lambda model: None)
    if endpoint == "image_edits":
        images = [{"image_url": "https://example.com/a.png"}]
        return spec.read(json.dumps(asked | {"prompt": "a cat", "images": images}).encode(), lambda model: None)
    return Params(FORMATS["images"].read(json.dumps(asked | {"prompt": "x"}).encode(), lambda model: None).document)


def test_every_endpoint_of_images_is_here() -> None:
    assert set(IMAGES) == {"images", "image_edits", "image_variations"}


@pytest.mark.parametrize("endpoint", ["images", "image_edits"])
def test_an_image_costs_the_row_of_what_is_asked_for_or_is_unknown(endpoint: Endpoint) -> None:
    for quality, size, resolution in itertools.product(QUALITIES, SIZES, RESOLUTIONS):
        given = {"quality": quality, "size": size, "resolution": resolution}
        asked = {name: value for name, value in given.items() if value is not None}
        variant = params_of(endpoint, asked).variant
        row = ROWS_OF_IMAGES.get(variant)
        if not asked:
            assert variant == UNSTATED_IMAGE
            row = 0.04
        if variant == UNSTATED_IMAGE:
            row = 0.04
        expected = None if row is None else round(2 * row * 1e9)
        used = Usage(source="reported", more=TWO, variant=variant)
        assert pricing.cost_nusd(BY_VARIANT, used) == expected, variant
        assert pricing.most_nusd(BY_VARIANT, 0, 0, 0, variant, known=TWO) == expected, variant
        assert (pricing.record_text(BY_VARIANT, used) is None) == (expected is None)
        assert pricing.cost_nusd(FLAT, used) == 80_000_000  # the operator's own price without such rows


@pytest.mark.parametrize(
    ("asked", "variant"),
    [
        ({"style": "vector_illustration", "size": "1024x1024"}, "auto-1024x1024-vector_illustration"),
        ({"style": "Vector art"}, "auto-auto-vector_art"),
        ({"style": "矢量-x", "image_size": "square"}, "auto-auto-square-_x"),
        ({"width": 2048, "height": 2048, "steps": 50}, "auto-2048x2048-50"),
        ({"width": 2048}, "auto-2048xauto"),
        ({"image_size": "2048x2048"}, "auto-2048x2048"),
        ({"num_inference_steps": 50}, "auto-50"),
        ({"style": "natural", "quality": "hd"}, "hd-auto"),
        ({"style": None, "width": None}, UNSTATED_IMAGE),
    ],
)
def test_members_of_vendors_are_a_variant(asked: dict[str, Any], variant: str) -> None:
    params = params_of("images", asked)
    assert params.variant == variant
    expected = 80_000_000 if variant == UNSTATED_IMAGE else None
    assert pricing.cost_nusd(BY_VARIANT, Usage(more=TWO, variant=variant)) == expected
    assert pricing.most_nusd(BY_VARIANT, 0, 0, 0, variant, known=TWO) == expected


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_costs_its_row_or_is_unknown(service: str) -> None:
    rows = {"input": 1, "output": 2}
    used, plain = Usage(10, 5, source="reported", variant=service), Usage(10, 5, source="reported")
    own, listed = Price.model_validate(rows), Price.model_validate(rows | {"source": "table t"})
    assert pricing.cost_nusd(own, used) == pricing.cost_nusd(listed, plain) == 20_000
    for price in (listed, Price.model_validate(rows | {"variants": {"other": {"input": 9}}})):
        assert pricing.cost_nusd(price, used) is None
        assert pricing.most_nusd(price, 10, 5, 0, service) is None
    priced = Price.model_validate(rows | {"variants": {service: {"input": 3}}, "source": "table t"})
    assert pricing.cost_nusd(priced, used) == 40_000


def test_the_table_names_the_services_that_cost_as_much_as_the_standard_one() -> None:
    table = PriceTable(datetime.now(UTC))
    groq = Price.model_validate(table.find("groq", "llama-3.3-70b-versatile"))
    usage = Usage(10, 5, source="reported")
    assert pricing.cost_nusd(groq, usage) == pricing.cost_nusd(groq, usage._replace(variant="flex"))
    assert pricing.cost_nusd(groq, usage._replace(variant="priority")) is None


@pytest.mark.parametrize(
    ("row", "parts", "body", "is_priced"),
    [
        ("videos", {}, {"model": "sora-2"}, True),
        ("videos", {}, {"model": "sora-2", "size": "1280x720"}, True),
        ("videos", {}, {"model": "sora-2", "size": "1792x1024"}, False),
        ("videos", {}, {"model": "sora-2-pro", "size": "1080x1920"}, False),
        ("replicate", {"owner": "black-forest-labs", "name": "flux-pro"}, {}, True),
        ("replicate", {"owner": "someone", "name": "flux-pro"}, {}, False),
        ("kling", {"kind": "videos", "action": "text2video"}, {"model_name": "kling-v1", "mode": "master"}, False),
        ("kling", {"kind": "videos", "action": "text2video"}, {"model_name": "kling-v1", "duration": "15"}, False),
        ("hailuo", {}, {"model": "MiniMax-Hailuo-02", "resolution": "2K"}, False),
        ("ideogram", {"version": "v3", "action": "generate"}, {"rendering_speed": "BEST"}, False),
        ("recraft", {"action": "generations"}, {"model": "recraftv4_1_pro"}, False),
        ("recraft", {"action": "generations"}, {"style": "Vector art"}, True),
        ("recraft", {"action": "generations"}, {"style": "Line art"}, False),
        ("recraft", {"action": "generations"}, {"model": "recraftv3", "style": "Line art"}, False),
        ("recraft", {"action": "generations"}, {"model": "recraftv3", "style_id": "own"}, False),
        ("recraft", {"action": "generations"}, {"model": "recraftv4_1", "style": "Line art"}, False),
        ("veo", {"model": "veo-3.1-generate-preview"}, {}, False),
    ],
)
def test_a_ready_row_prices_only_what_it_names(
    row: str, parts: dict[str, str], body: dict[str, Any], is_priced: bool
) -> None:
    rows = yaml.safe_load(ROWS.read_text())["passthrough"]
    made = rows_of(build({"upstreams": {"tasks": {"base_url": "http://127.0.0.1:1"}}, "passthrough": rows}))[row]
    names = {name for price in made.prices for name in price.when}
    model = body.get("model", body.get("model_name", parts.get("name", parts.get("model", parts.get("action", "")))))
    texts = read_options(names, parts, body) | {"model": model}
    assert any(holds(price.when, texts) for price in made.prices) is is_priced


MODELS = {
    "dall-e-3": {"image": 0.04, "variants": {name: {"image": usd} for name, usd in ROWS_OF_IMAGES.items()}},
    "flat": {"image": 0.04},
}
UNPRICED: list[dict[str, Any]] = [
    {"quality": "hd", "size": "1792x1024"}, {"quality": "high"}, {"size": "1792x1024"}, {"resolution": "1k"},
]  # fmt: skip


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    routes = [{"upstream": "main"}]
    endpoints = ["images", "image_edits", "image_variations"]
    models: dict[str, Any] = {
        name: {"endpoints": endpoints, "routes": routes, "price": price} for name, price in MODELS.items()
    }
    models["gpt-tiered"] = {
        "routes": routes, "price": {"input": 1, "output": 2, "variants": {"flex": {"input": 0.5}}},
        "max_output_tokens": 100,
    }  # fmt: skip
    keys = [key("free"), key("payer", quotas=[{"usd": 5, "per": "month"}])]
    return start_shared_gateway(settings(shared_upstream.url, keys=keys, models=models))


@pytest.mark.parametrize("asked", UNPRICED)
@pytest.mark.parametrize("path", ["/v1/images/generations", "/v1/images/edits"])
def test_an_unpriced_image_is_refused_on_a_quota_of_money_and_unknown_elsewhere(
    gateway: Gateway, upstream: ScriptedUpstream, path: str, asked: dict[str, Any]
) -> None:
    said = ok_json({"created": 1, "data": [{"b64_json": "AAAA"}]})
    upstream.answer_with(said, said)
    images = {"images": [{"image_url": "https://example.com/a.png"}]} if path.endswith("edits") else {}
    body = {"model": "dall-e-3", "prompt": "a cat", **asked, **images}
    refused = gateway.post(path, body, key="payer")
    assert (refused.status, refused.json["error"]["code"]) == (403, "model_not_priced")
    assert "`dall-e-3` has no price for `" in refused.json["error"]["message"]
    assert upstream.hits == 0
    record = gateway.call(gateway.post(path, body, key="free").headers["x-request-id"])
    assert (record["cost_usd"], record["price"], record["units"]) == (None, None, {"images": 1})
    flat = gateway.call(gateway.post(path, body | {"model": "flat"}, key="payer").headers["x-request-id"])
    assert flat["cost_usd"] == 0.04


def test_an_unpriced_form_is_refused_too(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    form = forms.form(("model", "dall-e-3"), ("image", b"\x89PNG" * 20), ("size", "512x512"))
    refused = gateway.send("POST", "/v1/images/variations", form, key="payer", headers=forms.TYPE)
    assert (refused.status, refused.json["error"]["code"], upstream.hits) == (403, "model_not_priced", 0)


def test_an_unpriced_service_is_refused_on_a_quota_of_money(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    body = {"model": "gpt-tiered", "messages": [{"role": "user", "content": "Hi"}], "service_tier": "priority"}
    refused = gateway.post("/v1/chat/completions", body, key="payer")
    assert (refused.status, refused.json["error"]["code"], upstream.hits) == (403, "model_not_priced", 0)
    assert "for `priority`" in refused.json["error"]["message"]


@pytest.mark.parametrize("regional", [{"batch-us": {"input": 2.2, "output": 6}}, {"batch-eu": {"input": 1}}, {}])
@pytest.mark.parametrize("endpoint", sorted(name for name, spec in FORMATS.items() if spec.batch is not None))
def test_a_batch_reserves_the_dearest_variant_that_its_lines_may_be_charged(
    endpoint: Endpoint, regional: dict[str, Any]
) -> None:
    rows = {"batch": {"input": 2, "output": 5}, **regional}
    price = Price.model_validate({"input": 4, "output": 10, "variants": {"us": {"input": 90}, **rows}})
    asked = Params(Document("{}", {}), "m", variant="batch", lines=3)
    model = Model(routes=[Route(upstream="main")], price=price, endpoints=["chat"])
    call = Call("req_1", 0.0, Key("alice"), endpoint, asked, model, label_model="m", arrived=0.0)
    costs = [pricing.cost_nusd(price, Usage(3000, 600, source="reported", variant=name)) or 0 for name in rows]
    assert windows.most_nusd(call, 3000, 600) == max(costs)


@pytest.mark.parametrize("asked", ["GPT-X", "gpt-x ", " gpt-x", "\uff47pt-x", "FAST", "Fast ", "llama-X"])
def test_no_pattern_serves_an_exact_name_in_another_spelling(asked: str) -> None:
    """Some upstreams take it as the same model, which would have the price and the limits of the pattern."""
    route = {"routes": [{"upstream": "up"}], "max_output_tokens": 9}
    config = build({
        "upstreams": {"up": {"base_url": "https://api.openai.com/v1", "api_key": "sk-1"}},
        "models": {"gpt-x": route, "Llama-X": route, "*": route},
        "aliases": {"fast": "gpt-x", "OTHER": "other"},
        "keys": [{"id": "k", "secret": "sk-gw-k-0123456789abcdef"}],
    })  # fmt: skip
    assert config.model_table.find(asked) is None
    served = [config.model_table.find(name) for name in ("gpt-x", "Llama-X", "fast", "OTHER", "other", "gpt-x-2026")]
    assert [None if each is None else each.name for each in served] == [
        "gpt-x", "Llama-X", "gpt-x", "other", "other", "gpt-x-2026",
    ]  # fmt: skip
