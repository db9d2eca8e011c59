"""The API reference at `/docs`, as Chromium renders it from the gateway's own OpenAPI document."""

from __future__ import annotations

from tests.browser.chromium import Page
from tests.flows.gateway_process import Gateway


def test_every_operation_is_shown_with_its_parameters_and_members(page: Page, gateway: Gateway) -> None:
    page.driver.get(f"{page.address}/docs")
    page.see("h2", "Calls")
    paths = gateway.get("/openapi.json", key=None).json["paths"]
    known = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    shown = {
        (method.text, path.text)
        for method, path in zip(page.all(".operation .method"), page.all(".operation .path"), strict=True)
    }
    assert shown == known
    calls = next(each for each in page.all(".operation > summary") if "/admin/api/calls" in each.text)
    calls.click()
    page.see(".operation[open] td", "limit")
    page.see(".operation[open] td", "at most 1000")
    page.see(".operation[open] td", "data")
    page.see(".operation[open] p", "the admin token, or the viewer token")
