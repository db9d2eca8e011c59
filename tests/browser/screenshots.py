"""Pictures of the dashboard for the documentation: make screenshots

Runs the demo (`gateway demo`) until its calls have made the live numbers move, and looks at it. Writes into
docs/images; needs Chromium, and pngquant for small files (a picture looks best with Inter installed:
apt-get install fonts-inter pngquant).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from gateway.commands.demo import Demo
from gateway.commands.demo_history import write_history
from gateway.commands.serve import supervise
from gateway.config.source import Reading
from tests.flows.client import request
from tests.flows.gateway_process import eventually

from .chromium import Page, Scheme, start

FOLDER = Path(__file__).parent.parent.parent / "docs" / "images"
BUSY_S = 45.0
LIVE = "[data-tile=requests] .figure, [data-tile=first-token] .figure, [data-tile=tokens] .figure"
START_S = 60.0


class Picture(NamedTuple):
    """One picture: what is shown, to whom, and how."""

    name: str
    view: str
    width: int = 1280
    height: int = 900
    scheme: Scheme = "light"
    who: str = ""
    """The id of the key that is signed in with; empty: the operator."""
    scrolled_to: str = ""
    """The selector of what is scrolled to the top."""
    clicked: str = ""
    """The selector of what is clicked first."""


PICTURES = (
    Picture("overview-light", "overview", height=1180),
    Picture("overview-dark", "overview", height=1180, scheme="dark"),
    Picture("overview-phone", "overview", 390, 844),
    Picture("latency-light", "overview?range=7d&group=upstream", scrolled_to="[aria-labelledby=latency-title]"),
    Picture("calls-light", "calls"),
    Picture("call-light", "calls?id={repeated}", clicked="main table tbody tr th a"),
    Picture("quotas-light", "quotas"),
    Picture("quotas-dark", "quotas", scheme="dark"),
    Picture("quotas-phone", "quotas", 390, 844, scrolled_to="main .scroll"),
    Picture("statement-light", "statement"),
    Picture("bills-light", "bills"),
    Picture("key-light", "keys/notebooks", height=1000),
    Picture("models-light", "models"),
    Picture("models-dark", "models", scheme="dark"),
    Picture("upstream-light", "upstreams/shaky", height=1000),
    Picture("playground-light", "playground", who="alice"),
    Picture("member-light", "mine", height=1500, who="support-bot"),
)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@contextmanager
def served(demo: Demo, port: int) -> Iterator[None]:
    """The demo, in a process of its own."""
    asyncio.run(write_history(demo.config, demo.began))
    reading = Reading(demo.config, demo.values, frozenset())
    process = multiprocessing.get_context("fork").Process(target=supervise, args=(reading, None, demo))
    process.start()
    demo.close()  # the sockets of the child are its own

    def is_ready() -> bool:
        try:
            return request(port, "GET", "/readyz", None, {}).status == 200
        except OSError:
            return False

    try:
        eventually(is_ready, START_S)
        yield
    finally:
        os.kill(process.pid or 0, signal.SIGTERM)
        process.join()


def repeated_call(port: int, token: str) -> str:
    """The id of the newest call with several attempts that was answered."""
    path = "/admin/api/calls?limit=1000&upstream=simulator"
    rows = request(port, "GET", path, None, {"Authorization": f"Bearer {token}"}).json["data"]
    found: str = next(row["id"] for row in rows if row["attempts"] > 1 and row["status"] == 200)
    return found


def take(page: Page, picture: Picture, token: str) -> None:
    """One picture."""
    page.forget()
    page.prefer(picture.scheme, is_still=True)
    page.resize(picture.width, picture.height)
    page.open(picture.view, token)
    page.see("main .tile, main table tbody tr, main .playground")
    if picture.view == "playground":
        page.until(lambda: page.see("main button.primary").is_enabled())
        page.click("main button.primary", "Send")
        page.see("[data-cost]")
    page.until(lambda: not page.all("[aria-busy], main .bone"))
    if picture.clicked:
        page.click(picture.clicked)
    if picture.view.startswith("overview"):
        page.until(lambda: all(each.text not in ("", "\u2013", "0.0") for each in page.all(LIVE)))
    time.sleep(2.5)
    if picture.scrolled_to:
        page.run("document.querySelector(arguments[0]).scrollIntoView()", picture.scrolled_to)
    path = FOLDER / f"{picture.name}.png"
    page.driver.save_screenshot(str(path))
    if shutil.which("pngquant"):
        quantise = ["pngquant", "--force", "--skip-if-larger", "--quality=70-95", "--output", path, path]
        subprocess.run(quantise, check=False)
    print(f"{path.name}: {path.stat().st_size // 1024} KB")


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="gateway-screenshots-") as made:
        demo = Demo(port, made)
        with served(demo, port):
            driver: Any = start(Path(made))
            try:
                time.sleep(BUSY_S)
                page = Page(driver, f"http://127.0.0.1:{port}")
                repeated = repeated_call(port, demo.admin_token)
                for each in PICTURES:
                    picture = each._replace(view=each.view.format(repeated=repeated))
                    take(page, picture, demo.key_secrets[picture.who] if picture.who else demo.admin_token)
            finally:
                driver.quit()


if __name__ == "__main__":
    main()
