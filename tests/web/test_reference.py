"""`/docs`: its files, its headers, and what it can show on which listener."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.web.app import REFERENCE as FOLDER
from gateway.web.static_page import CONTENT_TYPES

from .conftest import Inside
from .test_dashboard import FORBIDDEN, check_head, without_version

NOWHERE = "http://upstream-of-ours.example/v1"
FILES = sorted(path for path in FOLDER.iterdir() if path.suffix in CONTENT_TYPES)


@pytest.mark.parametrize("admin", [{}, {"token": "admin-token-0123456789"}])
async def test_page_and_files_are_served_with_the_strict_policy(inside: Inside, admin: dict[str, str]) -> None:
    client = await inside(NOWHERE, admin=admin)
    for path, file in [("/docs", FOLDER / "index.html"), *((f"/docs/{each.name}", each) for each in FILES)]:
        answer = await client.get(path)
        assert (answer.status, answer.headers["Content-Type"]) == (200, CONTENT_TYPES[file.suffix])
        assert without_version(await answer.text()) == file.read_text()
        check_head(answer.headers)
    assert (await client.get("/docs/nothing.js")).status == 404
    slash = await client.get("/docs/", allow_redirects=False)
    assert (slash.status, slash.headers["Location"]) == (308, "../docs")


def test_page_refers_only_to_files_of_the_gateway() -> None:
    page = (FOLDER / "index.html").read_text()
    found = [each for each in re.findall(r'(?:src|href)="([^"]+)"', page) if each not in ("data:,", "openapi.json")]
    assert {each.removeprefix("docs/") for each in found} == {path.name for path in FILES} - {"index.html"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.name))
@pytest.mark.parametrize("what", FORBIDDEN)
def test_files_hold_no(what: str, path: Path) -> None:
    assert re.search(FORBIDDEN[what], path.read_text()) is None


async def test_admin_operations_are_in_the_document_of_their_listener_only(inside: Inside) -> None:
    """The page shows its listener's document, and nothing else."""
    assert re.findall(r'new URL\("([^"]+)"', (FOLDER / "reference.js").read_text()) == ["openapi.json"]
    settings = {"token": "admin-token-0123456789", "listen": "127.0.0.1:1"}
    client = await inside(NOWHERE, admin=settings)
    assert (await client.get("/docs")).status == 200
    paths = (await (await client.get("/openapi.json")).json())["paths"]
    assert "/v1/completions" in paths
    assert not [path for path in paths if path.startswith("/admin")]
