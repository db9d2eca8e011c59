"""A provider's invoice on the page: pasted or chosen as a file, its differences, and the file of the result."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.browser.axe import check
from tests.browser.chromium import Page
from tests.browser.conftest import ATTACK, ago
from tests.flows.gateway_process import ADMIN_TOKEN, COMPLETIONS, Gateway, eventually

HEAD = "date,model,num_model_requests,input_tokens,output_tokens,amount_value"
MEASURES = ("cost_usd", "total_tokens", "requests")


def invoice() -> str:
    return "\n".join([HEAD, f"{ago(12)},{COMPLETIONS},1,9000,1000,1.5", f"{ago(1)},{ATTACK},1,1,1,0.25", ""])


def compared(gateway: Gateway, text: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    found: dict[str, Any] = gateway.send("POST", "/admin/api/invoice", {"text": text}, key=None, headers=headers).json
    return found


def shown(page: Page, row: Mapping[str, Any]) -> list[float | None]:
    values = page.run(
        "return [...arguments[0].querySelectorAll('td.number')].map((cell) => cell.dataset.value ?? null)",
        page.run(
            "return [...document.querySelectorAll('main tbody tr')].find((each) => each.dataset.name === arguments[0])",
            f"{row['day']} {row['model']}",
        ),
    )
    return [None if value is None else float(value) for value in values]


def test_an_invoice_has_the_numbers_of_the_comparison(operator: Page, either: Gateway) -> None:
    operator.go("invoice")
    operator.run("document.querySelector('#invoice-text').value = arguments[0]", invoice())
    operator.click("main form button[type=submit]")
    operator.see("#comparison-title", f"{ago(12)} to {ago(1)}")
    answer = compared(either, invoice())
    assert {row["only"] for row in answer["data"]} >= {"theirs"}
    for row in answer["data"]:
        names = [f"{measure}_{what}" for measure in MEASURES for what in ("ours", "theirs", "difference")]
        assert shown(operator, row) == [row[name] for name in names]
        for reason in row["why"]:
            operator.see("main .why-cell", reason)
    differing = [row for row in answer["data"] if any(row[f"{measure}_difference"] for measure in MEASURES)]
    operator.see("main [data-differing]", f"{len(differing)} of {len(answer['data'])} days and models differ.")
    operator.see("main tfoot", f"Total of {len(answer['data'])}")
    for note in answer["notes"]:
        operator.see("main .notes", note)
    assert operator.driver.title.startswith("Bill"), "a name of the file was run as HTML"
    check(operator, "a comparison")


def test_a_file_is_compared_and_downloaded(admin: Page, gateway: Gateway, tmp_path: Path) -> None:
    file = tmp_path / "export.csv"
    file.write_text(invoice())
    admin.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    admin.go("invoice")
    admin.see("#invoice-file").send_keys(str(file))
    admin.click("main form button[type=submit]")
    admin.click("main .csv")
    saved = tmp_path / "comparison-with-the-invoice.csv"
    eventually(saved.exists)
    rows = list(csv.DictReader(io.StringIO(saved.read_text())))
    known = compared(gateway, invoice())["data"]
    assert [(row["day"], row["model"], number(row["cost_usd_theirs"])) for row in rows] == [
        (row["day"], row["model"], row["cost_usd_theirs"]) for row in known
    ]


def number(cell: str) -> float | None:
    return float(cell) if cell else None


def test_what_cannot_be_read_is_said_beside_the_form(admin: Page) -> None:
    admin.go("invoice")
    admin.click("main form button[type=submit]")
    admin.see("main form .trouble", "Choose the file of the invoice, or paste its text.")
    admin.run("document.querySelector('#invoice-text').value = 'a,b\\n1,2'")
    admin.click("main form button[type=submit]")
    admin.see("main form .trouble", "found the columns a, b")
