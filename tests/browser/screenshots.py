"""Pictures of the dashboard for the README: python -m tests.browser.screenshots

Fills a store with a believable month, serves it in front of the simulated upstream, keeps some callers busy, and looks.
Writes into docs/images; needs Chromium, and pngquant for small files (a picture looks best with Inter installed:
apt-get install fonts-inter pngquant).
"""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.flows.house import ADMIN_TOKEN, Gateway, Process, key, model, secret, settings
from tests.flows.planted import plant

from .believable import ENDPOINTS, PEOPLE, PRICES, TEAMS, UPSTREAMS, quotas, records, spent, sums
from .chromium import Page, start
from .stores import fill_embedded, fill_windows

FOLDER = Path(__file__).parent.parent.parent / "docs" / "images"
BUSY_S = 45.0
CALLERS = 12
PAUSE_S = 0.5


def config(address: str, folder: Path) -> dict[str, Any]:
    """Three upstreams, of which one is away; people with quotas."""
    upstreams = {
        "openai": {"base_url": address, "api_key": "sk-nobody-looks-at-it"},
        "deepseek": {"base_url": address, "api_key": "sk-nobody-looks-at-it"},
        "local": {"base_url": "http://127.0.0.1:9/v1"},
    }
    models = {}
    for name, price in PRICES.items():
        more: dict[str, Any] = {"unpriced": "allow"}
        if price is not None:
            more["price"] = {"input": price[0], "output": price[1]}
        route = {"upstream": UPSTREAMS[name], **({"model": "gpt-4.1-mini"} if name == "gpt-4o" else {})}
        models[name] = model(ENDPOINTS.get(name, "chat"), routes=[route], **more)
    keys = [
        key(name, quotas=quotas(f"key:{name}", wishes), **({"team": team} if team else {}))
        for name, team, _, _, wishes in PEOPLE
    ]
    teams = {name: {"quotas": quotas(f"team:{name}", wishes)} for name, wishes in TEAMS.items()}
    made = settings(
        address, upstreams=upstreams, models=models, keys=keys, teams=teams,
        quotas=[{"requests": 3000, "per": "minute"}],
        store={"url": f"embedded:{folder / 'data'}"}, server={"access_log": "off"},
    )  # fmt: skip
    del made["upstreams"]["main"]
    for name in {*made["models"]} - {*models}:
        del made["models"][name]
    return made


@contextmanager
def busy(house: Gateway) -> Iterator[None]:
    """Some callers who go on calling."""
    ended = threading.Event()

    def call(place: int) -> None:
        chance = random.Random(place)
        while not ended.wait(chance.expovariate(1 / PAUSE_S)):
            name, _, models, _, _ = chance.choices(PEOPLE, weights=[each[3] ** 0.5 for each in PEOPLE])[0]
            wanted = chance.choices([*models], weights=[*models.values()])[0]
            pace = {"delay_s": chance.lognormvariate(-1.2, 0.4), "tokens_per_s": 90, "tokens": chance.randint(20, 160)}
            if chance.random() < 0.02:
                house.chat(name, model="gpt-5-of-tomorrow")
            elif ENDPOINTS.get(wanted) == "embeddings":
                house.post("/v1/embeddings", {"model": wanted, "input": "Some text to be found again. " * 40}, key=name)
            elif ENDPOINTS.get(wanted) == "completions":
                house.complete(name, prompt="Once upon a time, " * 30, max_tokens=180, simulate=pace)
            else:
                messages = [{"role": "user", "content": "What did the meeting decide? " * 60}]
                house.chat(name, model=wanted, messages=messages, stream=True, max_tokens=180, simulate=pace)

    threads = [threading.Thread(target=call, args=(place,), daemon=True) for place in range(CALLERS)]
    for thread in threads:
        thread.start()
    yield
    ended.set()
    for thread in threads:
        thread.join()


def take(page: Page, name: str, width: int, height: int, *, scheme: Any = "light") -> None:
    """One picture."""
    page.prefer(scheme, is_still=True)
    page.resize(width, height)
    time.sleep(1.5)
    path = FOLDER / f"{name}.png"
    page.driver.save_screenshot(str(path))
    if shutil.which("pngquant"):
        subprocess.run(
            ["pngquant", "--force", "--skip-if-larger", "--quality=70-95", "--output", path, path], check=False
        )
    print(f"{path.name}: {path.stat().st_size // 1024} KB")


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gateway-screenshots-") as made:
        folder = Path(made)
        simulator = Process(folder / "simulator", "simulate", "--port", "0")
        address = simulator.wait_for(r"serves (http://\S+)")[1]
        wanted = config(address, folder / "house")
        fill_embedded(folder / "house" / "data", sums())
        fill_windows(wanted, lambda window: spent(window.scope, window.unit, window.starts))
        plant(wanted["store"]["url"], records(400))
        house = Gateway(folder / "house", wanted)
        driver = start(folder)
        try:
            page = Page(driver, house.url)
            page.forget()
            with busy(house):
                page.open("overview", ADMIN_TOKEN)
                time.sleep(BUSY_S)
                take(page, "overview-light", 1280, 1180)
                take(page, "overview-dark", 1280, 1180, scheme="dark")
                take(page, "overview-phone", 390, 844)
                page.go("calls")
                take(page, "calls-light", 1280, 900)
                page.open(token=secret("alice"))
                time.sleep(2)
                take(page, "member-light", 1280, 1500)
                page.open("quotas", ADMIN_TOKEN)
                page.go("quotas")
                take(page, "quotas-dark", 1280, 900, scheme="dark")
                take(page, "quotas-light", 1280, 900)
                page.go("keys/ci-bot")
                take(page, "key-light", 1280, 900)
        finally:
            driver.quit()
            house.end()
            simulator.end()


if __name__ == "__main__":
    main()
