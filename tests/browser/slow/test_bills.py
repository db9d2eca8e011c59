"""Records and bill, and the statement of a month: the numbers of the admin API on the page, and the way to calls."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.browser.axe import check
from tests.browser.bills import LIMIT_USD, STORED, UNEXPLAINED_USD
from tests.browser.chromium import Page
from tests.browser.conftest import VIEWER_TOKEN, ago
from tests.flows.gateway_process import COMPLETIONS, Gateway, eventually

ROWS = "section[aria-labelledby=bills-title] .flush table"
MONEY = {
    "Bill": "bill_usd",
    "Recorded": "recorded_usd",
    "Difference": "difference_usd",
    "Unexplained": "unexplained_usd",
}


def summed(rows: list[dict[str, Any]], by: str) -> dict[str, dict[str, float]]:
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row[by]].append(row)
    return {
        name: {title: round(sum(row[each] for row in some), 9) for title, each in MONEY.items()}
        for name, some in found.items()
    }


def shown(page: Page, by: str) -> dict[str, dict[str, float]]:
    name = by.capitalize()
    return {row[name].split()[0]: {title: float(row[title]) for title in MONEY} for row in page.rows(ROWS)}


def saved(path: Path) -> str:
    """A file that the browser saves: it is there before its content is."""
    eventually(lambda: path.exists() and path.stat().st_size)
    return path.read_text()


def test_records_and_bill_have_the_numbers_of_the_api(operator: Page, either: Gateway) -> None:
    operator.go("bills")
    operator.see("[data-bill=main]")
    found = either.admin("bills").json
    (upstream,) = found["upstreams"]
    for name in ("bill_usd", "recorded_usd", "difference_usd"):
        assert operator.value(f"[data-bill=main] [data-sum={name}] b") == upstream[name]
    causes = operator.run("return [...document.querySelectorAll('.causes li')].map((each) => each.dataset.cause)")
    assert {*causes} == {*upstream["causes"]} >= {"price", "unexplained", "other_users", "services"}
    for cause, amount in upstream["causes"].items():
        assert operator.value(f".causes [data-cause={cause}]") == amount
        operator.see(f".causes [data-cause={cause}]", found["causes"][cause])
    assert operator.value("[data-account=main] b") == LIMIT_USD
    operator.see("[data-account=main]", "per month")
    operator.see(
        ".proposed",
        f'"{COMPLETIONS}":\n    price: {{input: 4, output: 8}}  # now {{input: 2, cached_input: 1, output: 4}}',
    )
    operator.until(lambda: shown(operator, "day") == summed(found["data"], "day"))
    operator.click("main [data-choice=model]")
    operator.until(lambda: shown(operator, "model") == summed(found["data"], "model"))
    operator.see("main tfoot", f"Total of {len(summed(found['data'], 'model'))}")
    check(operator, "records and bill")


def test_storage_is_a_cause_with_its_words_and_its_bytes(operator: Page, either: Gateway) -> None:
    operator.go("bills")
    operator.see("[data-bill=main] [data-cause=services]", "services: storage and sessions of the account")
    assert operator.value(".causes [data-cause=services]") == 0.3
    operator.click(f"{ROWS} tr[data-name='{ago(2)}'] .opener")
    operator.see(f"{ROWS} .below", "vector_stores")
    operator.see(f"{ROWS} .below", f"{STORED:,} bytes stored")
    operator.see(f"{ROWS} .below", "services +")
    check(operator, "a line item without a model")


def test_a_difference_leads_from_now_to_its_calls(operator: Page, either: Gateway, tmp_path: Path) -> None:
    problems = [row for row in either.admin("problems").json["data"] if row["kind"] == "bill"]
    # The bill may have been read before the calls of the past were planted, which makes a difference of cents.
    assert any(f"${UNEXPLAINED_USD}.0" in row["text"] and "without an explanation" in row["text"] for row in problems)
    for row in problems:
        operator.see("[data-problem=bill]", row["text"])
    operator.click("[data-problem=bill] a", "Days and causes")
    operator.until(lambda: operator.driver.current_url.endswith("#bills/main"))
    operator.click(f"{ROWS} tr[data-name='{ago(5)}'] .opener")
    operator.see(f"{ROWS} .below", "price +")
    operator.click(f"{ROWS} .below a", "the calls")
    (call,) = either.admin("calls", model=COMPLETIONS, since=ago(5), until=ago(4)).json["data"]
    operator.until(lambda: [row["Began"] for row in operator.rows()] != [])
    assert len(operator.rows()) == 1
    operator.see(f"main tr[data-name='{call['id']}']")
    operator.driver.back()
    operator.see(ROWS)
    operator.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    operator.click("section[aria-labelledby=bills-title] .csv")
    lines = saved(tmp_path / "records-and-bill-by-day.csv").splitlines()
    assert len(lines) == 1 + len(either.admin("bills").json["data"])


def test_the_statement_of_a_month_has_the_numbers_of_the_api(operator: Page, either: Gateway, tmp_path: Path) -> None:
    operator.go("bills")
    operator.click(".tabs a", "Statement")
    operator.see("section[aria-labelledby=statement-title] .flush table tfoot")
    found = either.admin("statement").json
    rows = operator.rows("section[aria-labelledby=statement-title] .flush table")
    said = {(row["Team"].replace("\u2013", ""), float(row["Requests"]), float(row["Spent"])) for row in rows}
    assert said == {(row["team"], row["requests"], row["cost_usd"]) for row in found["spent"]}
    for note in found["notes"]:
        operator.see("main .notes", note)
    (bill,) = found["bills"]
    amounts = operator.run(
        "return [...document.querySelectorAll('[data-bill] p [data-value]')].map((b) => b.dataset.value)"
    )
    assert [float(value) for value in amounts] == [bill[f"{each}_usd"] for each in ("bill", "recorded", "difference")]
    check(operator, "a statement")
    before = f"{ago(35):.7}"
    operator.choose("select[name=month]", before)
    operator.until(lambda: f"month={before}" in operator.driver.current_url)
    operator.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    operator.until(lambda: before in operator.text("section[aria-labelledby=statement-title] .note"))
    operator.click("section[aria-labelledby=statement-title] .csv")
    lines = list(csv.DictReader(io.StringIO(saved(tmp_path / "who-spent-what.csv"))))
    assert {line["month"] for line in lines} == {before}
    assert {"total", "bill", "recorded", "difference"} <= {line["line"] for line in lines}


def test_a_printed_statement_has_neither_controls_nor_the_top(operator: Page) -> None:
    operator.go("statement")
    operator.see("section[aria-labelledby=statement-title] .flush table tfoot")
    operator.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        for css in (".top", ".tabs", "#print", "select[name=month]", "main .csv", "body > footer"):
            assert operator.run("return getComputedStyle(document.querySelector(arguments[0])).display", css) == "none"
        operator.see("main tfoot", "Total of")
    finally:
        operator.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@pytest.mark.parametrize("token", [VIEWER_TOKEN])
def test_a_viewer_sees_bill_and_statement_and_compares_no_file(page: Page, token: str) -> None:
    page.open("invoice", token)
    page.see("[data-bill=main]")
    assert page.run("return [...document.querySelectorAll('.tabs a')].map((each) => each.textContent)") == [
        "Records and bill", "Statement",
    ]  # fmt: skip
