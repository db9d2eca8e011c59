"""A headless Chromium, driven by Selenium: one for all tests of a file; each test has a page without stored data.

`make test` installs it from the system's packages if permitted (.ci/servers). Without a browser the tests fail.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from selenium import webdriver
from selenium.common.exceptions import (
    NoSuchElementException,
    SessionNotCreatedException,
    StaleElementReferenceException,
)
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.flows.gateway_process import eventually

WITHIN_S = 75.0
"""Seconds that a test waits for an element, on a slow machine."""

EVERY_S = 0.02
"""Seconds between two looks. Each look takes time of the page itself."""

SHOWN = """
const [css, text] = arguments, shown = {checkOpacity: true, checkVisibilityCSS: true};
const isShown = (each) => each.checkVisibility(shown) && each.getClientRects().length > 0;
const textOf = (each) => (each.innerText ?? each.textContent).replaceAll("\\u00a0", " ");
return [...document.querySelectorAll(css)].find(
  (each) => isShown(each.closest("select") ?? each) && (!text || textOf(each).includes(text))
) ?? null;
"""
"""The first element with this CSS that is shown and has this text."""

ATTEMPTS = 3
"""Attempts to start a browser, which may take too long on a busy machine."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRIVER = "chromedriver"
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--disable-default-apps", "--no-default-browser-check", "--hide-scrollbars", "--lang=en",
)  # fmt: skip

NOTHING = "about:blank"

Scheme = Literal["light", "dark"]
T = TypeVar("T")


def _program(names: tuple[str, ...]) -> str:
    found = next((path for path in map(shutil.which, names) if path), None)
    assert found, f"there is no {names[0]} to drive: apt-get install chromium chromium-driver, or see .ci/servers"
    return found


def start(folder: Path) -> webdriver.Chrome:
    """A browser with a profile of its own in this folder. To be ended with `quit`."""
    os.environ["SE_OFFLINE"] = "true"  # Selenium looks for drivers on the network otherwise
    binary, driver = _program(BROWSERS), _program((DRIVER,))
    for attempt in range(ATTEMPTS):
        options = webdriver.ChromeOptions()
        options.binary_location = binary
        for flag in (*FLAGS, f"--user-data-dir={folder / f'profile-{attempt}'}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        try:
            return webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
        except SessionNotCreatedException:
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


class Page:
    """The dashboard in the browser: what it shows, and a user's actions."""

    def __init__(self, driver: webdriver.Chrome, address: str) -> None:
        self.driver = driver
        self.address = address
        """Of the gateway: http://127.0.0.1:8080."""

    def forget(self) -> None:
        """Deletes stored data; a window of desktop size in the light theme."""
        self.driver.get(f"{self.address}/dashboard/icon.svg")
        self.run("sessionStorage.clear(); localStorage.clear()")
        self.resize(1280, 900)
        self.prefer("light")
        self.logged()
        self.requested()

    def open(self, fragment: str = "", token: str | None = None) -> None:
        """The dashboard, signed in with this token."""
        if self.driver.current_url.partition("#")[0] == f"{self.address}/dashboard":
            self.driver.get(NOTHING)  # otherwise a change of the fragment alone loads nothing
        self.driver.get(f"{self.address}/dashboard" + (f"#token={token}" if token else ""))
        if token:
            self.see("#nav a[aria-current]")
        if fragment:
            self.go(fragment)

    def go(self, fragment: str) -> None:
        """To another view."""
        self.run("location.hash = arguments[0]", f"#{fragment}")

    # ----------------------------------------------------------------------------------------------------------- seeing

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def until(self, look: Callable[[], T]) -> T:
        """Calls `look` until it returns something; retries when an element was replaced meanwhile."""

        def once() -> T | None:
            try:
                return look()
            except (NoSuchElementException, StaleElementReferenceException, IndexError, KeyError):
                return None

        try:
            return eventually(once, WITHIN_S, EVERY_S)
        except AssertionError as error:
            shown = self.run("return (document.querySelector('dialog') ?? document.body).innerText")
            raise AssertionError(f"{error}; the page shows:\n{shown}") from None

    def see(self, css: str, text: str = "") -> WebElement:
        """An element that is shown, with this in its text."""

        found = self.until(lambda: self._shown(css, text))
        assert found is not None
        return found

    def gone(self, css: str) -> None:
        """Nothing of this kind is shown any more."""
        self.until(lambda: self._shown(css) is None)

    def _shown(self, css: str, text: str = "") -> WebElement | None:
        """In one request. Selenium's `is_displayed` sends 50 KB of script for each element, each time."""
        found: WebElement | None = self.run(SHOWN, css, text)
        return found

    def text(self, css: str, text: str = "") -> str:
        """Of an element that is shown, with `text` in it. It may be replaced between its being found and read."""
        return self.until(lambda: (self.see(css, text).text,))[0]

    def attribute(self, name: str, css: str, text: str = "") -> str | None:
        """Of such an element."""
        return self.until(lambda: (self.see(css, text).get_attribute(name),))[0]

    def value(self, css: str) -> float:
        """The exact number of such an element."""
        return float(self.attribute("data-value", css) or "nan")

    def rows(self, css: str = "main table") -> list[dict[str, str]]:
        """The visible rows of a table by heading, with exact numbers where cells have them."""
        found: list[dict[str, str]] = self.run(
            """
            const table = document.querySelector(arguments[0]);
            if (!table) return [];
            const names = [...table.tHead.rows[0].cells].map((cell) => cell.innerText.replace(/[↑↓]/g, "").trim());
            const said = (cell) => cell.dataset.value ?? cell.innerText.trim();
            return [...table.tBodies[0].rows].filter((row) => row.cells.length === names.length)
                .map((row) => Object.fromEntries([...row.cells].map((cell, at) => [names[at], said(cell)])));
            """,
            css,
        )
        return found

    # ------------------------------------------------------------------------------------------------------------ doing

    def click(self, css: str, text: str = "") -> None:
        def act() -> bool:
            self.see(css, text).click()
            return True

        self.until(act)

    def type(self, css: str, text: str) -> None:
        """Replaces the text of a field."""
        field = self.see(css)
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(Keys.DELETE, text)

    def press(self, *keys: str) -> None:
        webdriver.ActionChains(self.driver).send_keys(*keys).perform()

    def choose(self, css: str, value: str) -> None:
        """An option of a select, which may come after the select."""

        def act() -> bool:
            self.see(css).find_element(By.CSS_SELECTOR, f'option[value="{value}"]').click()
            return True

        self.until(act)

    @property
    def focused(self) -> Mapping[str, str]:
        """The element that has the focus."""
        found: dict[str, str] = self.run(
            "const at = document.activeElement;"
            "return {tag: at.tagName.toLowerCase(), id: at.id, text: at.innerText ?? '', label: at.ariaLabel ?? ''}"
        )
        return found

    # ------------------------------------------------------------------------------------------------------ the browser

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: Scheme, *, is_still: bool = False) -> None:
        """The preferences of the system: dark or light, reduced motion."""
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce" if is_still else "no-preference"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def logged(self) -> list[str]:
        """Console messages since the last call, with violations of the content security policy."""
        entries: list[dict[str, Any]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries]

    def requested(self) -> list[dict[str, Any]]:
        """Every request since the last call: `url`, `method`, `headers`."""
        return [event["request"] for event in self._events("Network.requestWillBeSent")]

    def _events(self, method: str) -> Iterator[dict[str, Any]]:
        for entry in self.driver.get_log("performance"):  # type: ignore[no-untyped-call]
            message = json.loads(entry["message"])["message"]
            if message["method"] == method:
                yield message["params"]


TAB, ENTER, ESCAPE, LEFT = Keys.TAB, Keys.ENTER, Keys.ESCAPE, Keys.ARROW_LEFT
