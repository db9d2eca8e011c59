"""What is served, its upstreams, and a reload that shows first what it changes: as the admin API says."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from selenium import webdriver

from tests.browser.chromium import ESCAPE, Page
from tests.browser.conftest import VIEWER_TOKEN, ago, check_requests
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import ok_json
from tests.flows.gateway_process import ADMIN_TOKEN, COMPLETIONS, Gateway, settings

MODELS = "section[aria-labelledby=models-title] table"
UPSTREAMS = "section[aria-labelledby=upstreams-title] table"
USAGE = "dialog section[aria-labelledby=subject-usage]"


def listed(gateway: Gateway, what: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in gateway.admin(what).json["data"]}


def test_models_and_upstreams_are_those_of_the_api(operator: Page, either: Gateway) -> None:
    operator.go("models")
    operator.see(f"{MODELS} tbody tr")
    known = listed(either, "models")
    rows = {row["Model"]: row for row in operator.rows(MODELS)}
    assert set(rows) == set(known)
    for name, row in rows.items():
        price = known[name]["price"] or {}
        for title, rate in (("Input", "input"), ("Cached", "cached_input"), ("Output", "output")):
            assert row[title] == (f"{price[rate]:g}" if rate in price else "\u2013"), name
        assert all(route["upstream"] in row["Routes"] for route in known[name]["routes"])
        assert "serving for" in row["Routes"]
    assert rows[COMPLETIONS]["Price from"] == "the configuration"
    assert rows[COMPLETIONS]["Aliases"] == "nick"
    upstreams = listed(either, "upstreams")
    shown = {row["Upstream"]: row for row in operator.rows(UPSTREAMS)}
    assert set(shown) == set(upstreams)
    assert shown["main"]["State"].startswith("serving for")
    assert shown["main"]["Address"] == upstreams["main"]["base_url"]
    assert upstreams["main"]["last_failure"]["fault"] == "status"
    assert shown["main"]["Last failure"].startswith("status 500 \u00d7 1, 1 of ")
    operator.type(".filter", COMPLETIONS)
    operator.until(lambda: [row["Model"] for row in operator.rows(MODELS)] == [COMPLETIONS])


def test_the_page_of_a_model_has_its_usage(operator: Page, either: Gateway) -> None:
    operator.go("models")
    operator.click(f"{MODELS} tbody th a", COMPLETIONS)
    operator.see("dialog h2", f"Model {COMPLETIONS}")
    assert operator.driver.current_url.endswith(f"#models/{COMPLETIONS}")
    (whole,) = either.usage(group_by="", model=COMPLETIONS, since=ago(29))
    for name in ("requests", "prompt_tokens", "completion_tokens", "errors"):
        operator.until(lambda: operator.value(f'dialog [data-sum="{name}"] b') == whole[name])  # noqa: B023
    (before,) = either.usage(group_by="", model=COMPLETIONS, since=ago(59), until=ago(30)) or [{"requests": 0}]
    assert operator.attribute("data-compared", "dialog [data-compared]") == str(before["requests"])
    by_key = {row["key"]: row["requests"] for row in either.usage(group_by="key", model=COMPLETIONS, since=ago(29))}
    table = f"{USAGE} .flush table"
    operator.until(lambda: {row["Key"]: int(row["Requests"]) for row in operator.rows(table)} == by_key)
    refused = either.admin("refusals", model=COMPLETIONS).json["data"]
    codes = {code: sum(row["code"] == code for row in refused) for code in {row["code"] for row in refused}}
    assert codes
    operator.until(
        lambda: (
            {
                each.get_attribute("data-reason"): int(each.text.split()[0])
                for each in operator.all("dialog [data-reason]")
            }
            == codes
        )
    )
    operator.see("dialog .facts", "main")
    operator.click("dialog [data-choice='7d']")
    (week,) = either.usage(group_by="", model=COMPLETIONS, since=ago(6))
    operator.until(lambda: operator.value('dialog [data-sum="requests"] b') == week["requests"])
    assert operator.driver.current_url.endswith(f"#models/{COMPLETIONS}?range=7d")
    operator.click("dialog a", "Its calls")
    operator.see("main input[name=model]")
    assert operator.attribute("value", "main input[name=model]") == COMPLETIONS


def test_the_page_of_an_upstream_has_state_limits_and_percentiles(operator: Page, either: Gateway) -> None:
    operator.go("upstreams/main")
    operator.see("dialog h2", "Upstream main")
    known = listed(either, "upstreams")["main"]
    (limit,) = known["limits"]
    operator.see("dialog .quota", "requests per minute")
    assert operator.value("dialog .quota .quota-foot span[data-value]") == limit["limit"] == limit["configured"]
    operator.see("dialog .facts [data-circuit=closed]", "serving")
    facts = operator.text("dialog .facts")
    assert known["base_url"] in facts
    assert "error status" in facts
    (latency,) = [row for row in either.admin("latency", group_by="upstream", since=ago(29)).json["data"]
                  if row["upstream"] == "main"]  # fmt: skip
    table = "dialog section[aria-labelledby=subject-latency] .flush table"
    operator.until(lambda: len(operator.rows(table)) > 0)
    operator.click("dialog [data-choice=attempts]")
    operator.see("dialog .readout", "Failed attempts, retried ones among them, by day")
    rows = operator.rows(table)
    assert sum(int(row["Failed attempts"]) for row in rows) == latency["failed_attempts"] > 0
    (whole,) = either.usage(group_by="", upstream="main", since=ago(29))
    operator.until(lambda: operator.value('dialog [data-sum="requests"] b') == whole["requests"])
    operator.press(ESCAPE)
    operator.gone("dialog")
    operator.see("[data-figure=spend]")  # from where it was opened


def test_the_page_of_an_upstream_says_what_it_has_learned_of_its_limits(
    driver: webdriver.Chrome, start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    """One whose answers name a lower limit, and one whose limit is found by trying."""
    account = {"base_url": upstream.url, "api_key": "sk-up"}
    upstreams = {
        "learns": {**account, "limits": {"tokens": "1000/min"}},
        "adapts": {**account, "limits": {"parallel": 50, "adaptive": True}},
    }
    models = {f"gpt-{name}": {"routes": [{"upstream": name}], "max_output_tokens": 50} for name in upstreams}
    gateway = start_gateway(settings(upstream.url, upstreams=upstreams, models=models))
    said = {"model": "m", "usage": {"prompt_tokens": 10, "completion_tokens": 5}}
    upstream.answer_with(ok_json(said, headers=[("x-ratelimit-limit-tokens", "800")]))
    assert gateway.chat(model="gpt-learns").status == 200
    page = Page(driver, gateway.url)
    page.forget()
    page.open(token=ADMIN_TOKEN)
    for name, learned, configured in (("learns", 800, "1,000 tokens"), ("adapts", 4, "50 calls")):
        (limit,) = listed(gateway, "upstreams")[name]["limits"]
        assert limit["limit"] == learned
        page.go(f"upstreams/{name}")
        page.see("dialog h2", name)
        page.see("dialog [data-learned]", f"Learned from its answers; {configured} are configured.")
        assert page.value("dialog .quota .quota-foot span[data-value]") == learned
        page.press(ESCAPE)
        page.gone("dialog")
    check_requests(page)


def test_refusals_are_those_of_the_chosen_days(operator: Page, either: Gateway) -> None:
    operator.go(f"keys/bob?range=custom&since={ago(3)}&until={ago(1)}")
    operator.see("dialog section[aria-labelledby=subject-refusals] .none", "No request was refused")
    assert not operator.all("dialog [data-reason]")
    operator.click("dialog [data-choice=today]")
    refused = either.admin("refusals", key="bob", code="insufficient_quota", since=ago(0)).json["data"]
    assert refused
    operator.until(lambda: operator.text("dialog [data-reason=insufficient_quota]").split()[0] == str(len(refused)))


def test_an_upstream_that_is_gone_keeps_its_usage(operator: Page, either: Gateway) -> None:
    operator.go("upstreams/former")
    operator.see("dialog .why.bad", "no upstream former now")
    operator.until(lambda: operator.value('dialog [data-sum="requests"] b') == 1)


@pytest.fixture
def restored(either: Gateway) -> Any:
    """The file as it was, at the end."""
    text = either.file.read_text()
    yield yaml.safe_load(text)
    either.file.write_text(text)
    either.send("POST", "/admin/api/reload", key=None, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})


@pytest.mark.changes
def test_a_reload_shows_what_changes_and_applies_it(operator: Page, either: Gateway, restored: Any) -> None:
    operator.go("models")
    operator.click("#reload")
    operator.see("dialog .why.good", "nothing would change")
    assert not operator.see("dialog button.primary").is_enabled()
    changed = copy.deepcopy(restored)
    changed["models"][COMPLETIONS]["price"]["output"] = 5
    either.file.write_text(yaml.safe_dump({**changed, "prise": 1}))
    operator.click("dialog button", "Read again")
    operator.see("dialog [data-refused=invalid_configuration]", "prise")
    assert not operator.see("dialog button.primary").is_enabled()
    either.file.write_text(yaml.safe_dump({**changed, "server": {**changed["server"], "workers": 3}}))
    operator.click("dialog button", "Read again")
    operator.see("dialog [data-refused=restart_required]", "server.workers")
    operator.see("dialog td", "a restart")
    either.file.write_text(yaml.safe_dump(changed))
    operator.click("dialog button", "Read again")
    received = either.admin("reload").json
    operator.until(
        lambda: (
            [(row["Setting"], row["Change"]) for row in operator.rows("dialog table")]
            == [(each["setting"], each["what"]) for each in received["changes"]]
        )
    )
    assert [each["what"] for each in received["changes"]] == ["4 -> 5"]
    assert listed(either, "models")[COMPLETIONS]["price"]["output"] == 4
    operator.click("dialog button.primary", "Apply")
    operator.see("dialog .why.good", f"configuration number {received['generation'] + 1} is in use")
    operator.press(ESCAPE)
    operator.until(lambda: {row["Model"]: row["Output"] for row in operator.rows(MODELS)}[COMPLETIONS] == "5")


def test_a_viewer_looks_and_reloads_nothing(page: Page, gateway: Gateway) -> None:
    page.open(token=VIEWER_TOKEN)
    page.go("models")
    page.see(f"{MODELS} tbody tr")
    assert not page.all("#reload")
