"""Keys, quotas and teams in one table, in a gateway with 203 keys, 60 models, 30 teams and names of 100 characters."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from gateway.records import Usage
from tests.browser.axe import check
from tests.browser.chromium import ENTER, ESCAPE, NOTHING, TAB, Page
from tests.browser.conftest import ago, check_requests
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import ok_json
from tests.flows.gateway_process import ADMIN_TOKEN, COMPLETIONS, Gateway, eventually, key, model, settings
from tests.flows.planted import plant, record

KEYS, MODELS, TEAMS = 203, 60, 30
LONG = "a" * 87 + "@example.org"
LONG_MODEL = "arn:aws:bedrock:eu-central-1:123456789012:inference-profile/" + "m" * 40
OWNERS = ("ann@example.org", LONG)
WIDTHS = (390, 820, 1920)
PEOPLE = [f"person-{number:02}@example.org" for number in range(1, 41)]
NEAR = "person-07@example.org"
COST_USD = 9.5
"""Of a call: three of them are 28.50 of 30 dollars."""


WAITED = {"invoice": "main form", "bills": "main .empty", "calls": "main table"}
"""What a view without a sum has when it is whole."""


@pytest.fixture
def gateway(upstream: ScriptedUpstream, start_gateway: StartsGateways) -> Gateway:
    """Ann has two keys with different spends, at which her name is written in two ways, LONG one; the others have no
    owner."""
    owned = {0: OWNERS[0], 1: "Ann@Example.ORG", 2: OWNERS[1]}
    keys = [
        key(f"key-{number:03}", team=f"team-{number % TEAMS:02}", quotas=[{"requests": 100 + number, "per": "month"}],
            **({"owner": owned[number]} if number in owned else {}))
        for number in range(KEYS)
    ]  # fmt: skip
    teams = {f"team-{number:02}": {"quotas": [{"usd": 100, "per": "month"}]} for number in range(TEAMS)}
    price = {"input": 0, "output": COST_USD / 5 * 1e6}
    models = {COMPLETIONS: model("completions", price=price), LONG_MODEL: model("chat")}
    models |= {f"model-{number:02}": model("chat") for number in range(MODELS - len(models))}
    made = start_gateway(settings(upstream.url, models=models, keys=keys, teams=teams))
    usage = Usage(100, 50, source="reported")
    plant(made.config["store"]["url"], [
        record(ago(back), f"key-{number:03}", team=f"team-{number % TEAMS:02}", cost_nusd=(number + 1) * 1_000_000_000,
               usage=usage, stream=True, first_byte_s=0.1 * (back + 1), duration_s=1.0 + back)
        for number in range(5) for back in (0, 1)
    ])  # fmt: skip
    return made


@pytest.fixture
def page(driver: webdriver.Chrome, gateway: Gateway) -> Iterator[Page]:
    made = Page(driver, gateway.url)
    made.forget()
    made.open(token=ADMIN_TOKEN)
    yield made
    check_requests(made)


def totals(page: Page, css: str = "main table") -> list[float]:
    """The numbers of the last line of a table."""
    found: list[float] = page.run(
        "return [...document.querySelector(arguments[0]).tFoot.querySelectorAll('[data-value]')]"
        ".map((cell) => Number(cell.dataset.value))",
        css,
    )
    return found


def test_one_row_for_each_key_owner_or_team_with_a_sum(page: Page, tmp_path: Path) -> None:
    page.go("keys")
    page.see("main .pager", f"1 to 50 of {KEYS}")
    page.see("main tfoot", f"Total of {KEYS}")
    assert totals(page) == [30.0, 0.0]
    page.see("main table a[href='#people/ann%40example.org']", "ann@example.org")
    page.click("main [data-choice=owner]")
    page.until(lambda: page.driver.current_url.endswith("#people"))
    page.until(lambda: len(page.rows()) == 3)
    assert {row["Person"]: (row["Keys"], float(row["30 days"])) for row in page.rows()} == {
        "ann@example.org": ("2", 6.0), LONG: ("1", 6.0), "no owner": (str(KEYS - 3), 18.0),
    }  # fmt: skip
    page.click("main tr[data-name='ann@example.org'] .opener", "2 keys")
    page.until(lambda: [row["Key"] for row in page.rows(".below table")] == ["key-000", "key-001"])
    assert totals(page, ".below table") == [6.0, 0.0]
    page.click("main [data-choice=team]")
    page.until(lambda: page.driver.current_url.endswith("#teams"))
    page.see("main tfoot", f"Total of {TEAMS}")
    assert totals(page) == [float(KEYS), 30.0, 0.0]
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    page.click("main .pager .csv")
    eventually((tmp_path / "teams.csv").exists)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "teams.csv").read_text())))
    assert len(rows) == TEAMS
    assert {row["unit"] for row in rows} == {"usd"}


@pytest.mark.parametrize(
    ("old", "chosen", "dialog"),
    [
        ("quotas", "key", ""), ("keys", "key", ""), ("teams", "team", ""), ("keys?by=owner", "owner", ""),
        ("people/ann@example.org", "owner", "ann@example.org"),
        ("keys/key-007", "key", "key-007"), ("teams/team-07", "team", "Team team-07"),
    ],
)  # fmt: skip
def test_old_addresses_lead_to_the_table(page: Page, old: str, chosen: str, dialog: str) -> None:
    page.driver.get(NOTHING)
    page.driver.get(f"{page.address}/dashboard#{old}")  # with nothing to go back to
    if dialog:
        page.see("dialog h2", dialog)
        page.press(ESCAPE)
        page.gone("dialog")
    page.see(f"main [data-choice={chosen}][aria-pressed=true]")
    assert page.attribute("aria-current", "#nav a[href='#keys']") == "page"
    page.see("main tfoot", "Total of")


def test_usage_is_grouped_by_owner(page: Page) -> None:
    table = "section[aria-labelledby=who-title] table"
    page.click("[data-choice=owner]")
    page.see(f"{table} tr[data-name='ann@example.org']")
    spent = {row["Owner"]: float(row["Cost"]) for row in page.rows(table)}
    assert spent == {"ann@example.org": 6.0, LONG: 6.0, "": 18.0}
    page.see(f"{table} tfoot", "Total of 3")
    page.click(f"{table} tr[data-name='ann@example.org'] .opener", "keys")
    page.until(lambda: {row["Key"] for row in page.rows(f"{table} .below table")} == {"key-000", "key-001"})
    page.see("section[aria-labelledby=usage-title] .legend", "ann@example.org")
    check(page, "usage by owner")


def test_a_leader_gives_budgets_sees_who_is_near_and_raises_one(
    page: Page, gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    page.go("teams")
    page.click("#new-team")
    page.type("#field-name", "platform")
    for place, usd in (("quotas", "1000"), ("member_quotas", "30")):
        page.click(f"dialog [data-param={place}] button", "Add a quota")
        page.type(f"dialog [data-param={place}] .amount", usd)
        page.choose(f"dialog [data-param={place}] select[aria-label='Of what']", "usd")
        page.choose(f"dialog [data-param={place}] select[aria-label='Per']", "month")
    page.click("dialog form button[type=submit]")
    page.gone("dialog form")
    admin = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    secrets = {}
    for person in PEOPLE:
        body = {"id": person.partition("@")[0], "owner": person, "team": "platform"}
        secrets[person] = gateway.send("POST", "/admin/api/keys", body, headers=admin).json["secret"]
    usage = {"prompt_tokens": 0, "completion_tokens": 5, "total_tokens": 5}
    upstream.answer_with(always=ok_json({"model": "m", "choices": [], "usage": usage}))
    for person, calls in ((NEAR, 3), (PEOPLE[20], 1)):
        head = {"Authorization": f"Bearer {secrets[person]}"}
        body = {"model": COMPLETIONS, "prompt": "a", "max_tokens": 5}
        for _ in range(calls):
            assert gateway.send("POST", "/v1/completions", body, key=None, headers=head).status == 200
    eventually(lambda: sum(row["cost_usd"] for row in gateway.usage(team="platform")) == 4 * COST_USD)
    page.open("people?near=1", ADMIN_TOKEN)
    page.until(lambda: [row["Person"] for row in page.rows()] == [NEAR])
    page.see("main tbody", "of $30.00 per month")
    page.see("main [data-choice=near]", "near a limit (1)")
    page.click("main tbody th a")
    page.see("dialog h3", "In the team platform")
    page.click("dialog .quota button", "Top up")
    page.type("dialog.small input[name=more]", "20")
    page.click("dialog.small button[type=submit]")
    page.see("dialog .quota", "of $50.00")
    page.click("dialog footer button", "Quotas")
    page.click("dialog.wide button", "Add a quota")
    page.type("dialog.wide .amount", "60")
    page.choose("dialog.wide select[aria-label='Of what']", "usd")
    check(page, "the quotas of a person")
    page.click("dialog.wide button[type=submit]")
    page.see("dialog .facts", "her own, in the store")
    page.see("dialog h3", "Over all her keys")
    check(page, "a person")
    page.press(ESCAPE)
    page.until(lambda: page.driver.current_url.endswith("#people?near=1"))
    page.until(lambda: page.rows() == [])
    page.click("main [data-choice=all]")
    page.see("main tfoot", f"Total of {len(PEOPLE) + 3}")
    page.go("statement")
    page.until(lambda: [row["Team"] for row in page.rows() if float(row["Spent"]) == 3 * COST_USD] == ["platform"])


def test_the_p95_of_today_stands_beside_that_of_yesterday(page: Page, gateway: Gateway) -> None:
    page.go("models")
    known = {
        back: {row["upstream"]: row for row in gateway.admin(
            "latency", group_by="upstream", since=ago(back), until=ago(back)).json["data"]}
        for back in (0, 1)
    }  # fmt: skip
    assert known[0]["main"]["first_token_p95_s"] != known[1]["main"]["first_token_p95_s"]
    row = "section[aria-labelledby=upstreams-title] tr[data-name=main]"
    names = ("first_token_p95_s", "duration_p95_s")
    page.until(lambda: len(page.all(f"{row} [data-before]")) == len(names))
    before = page.run(
        "return [...document.querySelectorAll(arguments[0])].map((each) => Number(each.dataset.before))",
        f"{row} [data-before]",
    )
    now = page.run(
        "return [...document.querySelectorAll(arguments[0])].map((each) => Number(each.closest('td').dataset.value))",
        f"{row} [data-before]",
    )
    assert before == [known[1]["main"][name] for name in names]
    assert now == [known[0]["main"][name] for name in names]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_fault_at_any_width_and_in_both_themes(page: Page, scheme: str, width: int) -> None:
    page.prefer(scheme, is_still=True)  # type: ignore[arg-type]
    page.resize(width, 900)
    for view in ("keys", "people", "teams", "models", "bills", "statement", "invoice", "overview", "calls"):
        page.go(view)
        page.see(WAITED.get(view, "main tfoot"))
        if view == "people":
            page.click("main .opener")
            page.see(".below table")
        check(page, f"{view} at {width}, {scheme}")
        assert page.run("return document.documentElement.scrollWidth") <= width, view


def test_twice_as_large_nothing_is_lost(page: Page) -> None:
    page.resize(640, 450, 2)  # 1280 by 900 at 200 %
    for view in ("keys", "people", "bills", "statement", "invoice"):
        page.go(view)
        page.see(WAITED.get(view, "main tfoot"))
        assert page.run("return document.documentElement.scrollWidth") <= 640, view
        check(page, f"{view} at 200 %")


def test_the_table_is_used_by_keyboard(page: Page) -> None:
    page.go("keys")
    page.see("main tfoot")
    page.run("document.querySelector('main [data-choice=owner]').focus()")
    page.press(ENTER)
    page.see("main tr[data-name='ann@example.org']")
    while page.focused["text"] != "2 keys":
        page.press(TAB)
    page.press(ENTER)
    page.see(".below table")
    assert page.focused["text"] == "2 keys"
    while page.focused["text"] != "key-000":
        page.press(TAB)
    page.press(ENTER)
    page.see("dialog h2", "key-000")
