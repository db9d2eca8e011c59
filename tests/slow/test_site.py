"""The documentation site: it builds, every link and anchor has a target, and it loads nothing from another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from gateway.web.openapi.document import OPERATIONS
from gateway.web.openapi.schemas import SCHEMAS

ROOT = Path(__file__).parent.parent.parent
BUILD_S = 150


class Page(HTMLParser):
    """The links, the ids and what is loaded of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") != "canonical":
            self.loaded.append(given["href"])
        if "src" in given:
            self.loaded.append(given["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With every warning an error (`strict` in mkdocs.yml)."""
    folder = tmp_path_factory.mktemp("site")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # as make docs
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder],
        cwd=ROOT, env={**env, "NO_MKDOCS_2_WARNING": "1"}, timeout=BUILD_S, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}


def test_the_site_holds_no_program(site: Path) -> None:
    assert list(site.glob("**/*.pyc")) == []
    assert [path for path in site.glob("**/*.py") if "source" not in path.parts] == []


def test_every_link_and_anchor_has_a_target(site: Path, pages: dict[Path, Page]) -> None:
    lost = [f"{path.relative_to(site)}: {link}" for path, page in pages.items() for link in broken(path, page, pages)]
    assert lost == []
    assert len(pages) > 40


def broken(path: Path, page: Page, pages: dict[Path, Page]) -> Iterator[str]:
    for link in page.links:
        target, anchor = urldefrag(link)
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        to = Path(os.path.normpath(path.parent / unquote(target))) if target else path
        to = to / "index.html" if to.is_dir() else to
        if not to.exists() or (anchor and unquote(anchor) not in pages[to].ids):
            yield link


def test_anchors_of_the_papers_outside_the_site_exist(site: Path, pages: dict[Path, Page]) -> None:
    for name in ("README.md", ".github/PULL_REQUEST_TEMPLATE.md"):
        for page, anchor in re.findall(r"\]\((?:\.\./)?docs/([\w/-]+)\.md#([\w-]+)\)", (ROOT / name).read_text()):
            assert anchor in pages[site / page / "index.html"].ids, f"{name}: docs/{page}.md#{anchor}"


def test_nothing_is_loaded_from_another_host(pages: dict[Path, Page]) -> None:
    foreign = re.compile(r"(https?:)?//")
    assert {name for page in pages.values() for name in page.loaded if foreign.match(name)} == set()


def test_links_to_files_of_the_repository_lead_to_copies(site: Path, pages: dict[Path, Page]) -> None:
    links = pages[site / "deployment" / "index.html"].links
    assert {"../source/deploy/nginx.conf", "../source/deploy/helm/values.yaml", "../runbook/"} <= set(links)
    assert (site / "source" / "deploy" / "nginx.conf").read_bytes() == (ROOT / "deploy" / "nginx.conf").read_bytes()


def test_the_reference_has_every_operation_and_every_body(site: Path) -> None:
    text = (site / "api" / "index.html").read_text()
    shown = set(re.findall(r"<h3[^>]*><code>([A-Z]+ [^<]+)</code>", text))
    assert shown == {f"{method} {path}" for method, path in OPERATIONS}
    bodies = {operation.body.__name__ for operation in OPERATIONS.values() if operation.body}
    assert {*SCHEMAS, *bodies} <= set(re.findall(r"<h3[^>]*>(\w+)<a", text))
