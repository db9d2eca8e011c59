"""How soon the dashboard is painted over a year of a thousand keys: python -m tests.browser.paint

Fills a store, starts a gateway over it, and opens each view a few times in Chromium, each time in an empty page.
Printed for each view: the median and the slowest time from the navigation to the first contentful paint (the aim is
300 ms on loopback; it returns 1 where a median is above it), and to the first row or figure of the view, both by the
clock of the page. The first line is what the browser alone takes: a line of text from the same gateway, opened by
turns with the views. Needs Chromium, and redis-server for `--store redis`; it takes two minutes. Times are of this
machine at rest: run nothing beside it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.flows.gateway_process import ADMIN_TOKEN, Gateway, key, settings

from .chromium import Page, start
from .stores import days, filled, large

AIM_MS = 300
VIEWS = (
    "overview",
    "quotas",
    "keys",
    "teams",
    "models",
    "calls",
    "playground",
    "keys/key-0001",
    "upstreams/upstream-0",
)
TEXT = "healthz"
"""A line of text, which the gateway has at hand."""

SHOWN = "main .tile .figure, main table tbody tr, main .playground, dialog [data-sum], pre"
SHOWN_OF_ONE = "dialog [data-sum]"

WATCH = """
const look = () => {
  const one = location.hash.includes("/") ? arguments_[1] : arguments_[0];
  if (document.querySelector(one)?.checkVisibility()) window.shownAt_ms = performance.now();
  else requestAnimationFrame(look);
};
look();
"""
"""Run in each page from its beginning: notes the frame that first shows what is waited for."""


class Opened(NamedTuple):
    """Milliseconds from a navigation to the first contentful paint, and to the first thing of the view."""

    paint_ms: float
    shown_ms: float


def opened(page: Page, address: str) -> Opened:
    page.driver.get("about:blank")
    page.driver.get(f"{page.address}/{address}")
    paint = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    return Opened(page.until(lambda: page.run(paint)), page.until(lambda: page.run("return window.shownAt_ms")))


def measure(page: Page, times: int) -> bool:
    """Print a line for each view; whether all were painted in time."""
    watch = WATCH.replace("arguments_", json.dumps([SHOWN, SHOWN_OF_ONE]))
    page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": watch})
    page.open(token=ADMIN_TOKEN)
    addresses = [TEXT, *(f"dashboard#{view}" for view in VIEWS)]
    took: dict[str, list[Opened]] = {address: [] for address in addresses}
    for _ in range(times):
        for address in addresses:
            took[address].append(opened(page, address))
    print(f"{'':<32}{'paint, median':>15}{'slowest':>10}{'shown, median':>15}{'slowest':>10}   (ms)")
    is_soon = True
    for address, found in took.items():
        paints, shown = [each.paint_ms for each in found], [each.shown_ms for each in found]
        print(f"{address:<32}{median(paints):>15.0f}{max(paints):>10.0f}{median(shown):>15.0f}{max(shown):>10.0f}")
        if median(paints) >= AIM_MS:
            is_soon = False
            print(f"  {address}: above the aim of {AIM_MS} ms")
    return is_soon


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=("embedded", "redis"), default="embedded")
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--times", type=int, default=5)
    args = parser.parse_args()
    keys = [key(f"key-{place:04}", team=f"team-{place % 20}", quotas=[{"usd": 100, "per": "month"}])
            for place in range(args.keys)]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="gateway-paint-") as made:
        folder = Path(made)
        with filled(args.store, folder, large(args.keys, days(args.days))) as url:
            upstreams = {f"upstream-{place}": {"base_url": "http://127.0.0.1:9/v1"} for place in range(2)}
            teams = {f"team-{place}": {"quotas": []} for place in range(20)}
            config = settings("http://127.0.0.1:9/v1", keys=keys, teams=teams, upstreams=upstreams, store={"url": url})
            gateway = Gateway(folder / "gateway", config)
            driver = start(folder)
            try:
                page = Page(driver, gateway.url)
                page.forget()
                return 0 if measure(page, args.times) else 1
            finally:
                driver.quit()
                gateway.end()


if __name__ == "__main__":
    raise SystemExit(main())
