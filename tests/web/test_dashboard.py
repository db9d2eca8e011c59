"""The dashboard's files: access, response headers, and forbidden content."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from multidict import CIMultiDictProxy

from gateway.web.dashboard import APART, FOLDER, SCRIPT
from gateway.web.static_page import CONTENT_TYPES

from .conftest import ADMIN_TOKEN, Inside

NOWHERE = "http://upstream-of-ours.example/v1"
FILES = sorted(path for path in FOLDER.iterdir() if path.suffix in CONTENT_TYPES)
MODULES = [path for path in FILES if path.suffix == ".js"]


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def check_head(headers: CIMultiDictProxy[str], cache_control: str = "no-cache") -> None:
    policy = headers["Content-Security-Policy"].split("; ")
    assert policy[0] == "default-src 'none'"
    assert {"script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src 'self' data:"} <= {*policy}
    assert {"base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"} <= {*policy}
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == cache_control
    assert headers["x-request-id"].startswith("req_")


def without_version(page: str) -> str:
    return re.sub(r'(="(?:dashboard|docs)/)[0-9a-f]{16}/', r"\1", page)


async def test_page_needs_no_token_and_says_what_browsers_may_do(inside: Inside) -> None:
    client = await inside(NOWHERE)
    answer = await client.get("/dashboard")
    assert (answer.status, answer.content_type, answer.charset) == (200, "text/html", "utf-8")
    assert without_version(await answer.text()) == (FOLDER / "index.html").read_text()
    check_head(answer.headers)


async def test_every_file_is_there_under_its_type(inside: Inside) -> None:
    client = await inside(NOWHERE)
    for path in FILES:
        answer = await client.get(f"/dashboard/{path.name}")
        assert answer.status == 200
        assert answer.headers["Content-Type"] == CONTENT_TYPES[path.suffix]
        assert without_version(await answer.text()) == path.read_text()
        check_head(answer.headers)


async def test_files_of_this_version_are_kept_by_browsers(inside: Inside) -> None:
    """The page names each with the version of all files, so that a second visit asks for the page alone."""
    client = await inside(NOWHERE)
    page = await (await client.get("/dashboard")).text()
    named = re.findall(r'(?:src|href)="(dashboard/[^"]+)"', page)
    assert {each.rpartition("/")[2] for each in named} == {SCRIPT, APART, "style.css", "icon.svg"}
    (version,) = {each.split("/")[1] for each in named}
    for each in named:
        answer = await client.get(f"/{each}")
        assert answer.status == 200
        check_head(answer.headers, "public, max-age=31536000, immutable")
        assert await answer.read() == await (await client.get(f"/dashboard/{each.rpartition('/')[2]}")).read()
    other = "0123456789abcdef"  # of a gateway that is being replaced
    assert version != other
    check_head((await client.get(f"/dashboard/{other}/app.js")).headers)


async def test_what_a_browser_has_already_is_not_sent_again(inside: Inside) -> None:
    client = await inside(NOWHERE)
    first = await client.get("/dashboard/app.js")
    mark = first.headers["ETag"]
    for known in (mark, f'"other", W/{mark}'):
        again = await client.get("/dashboard/app.js", headers={"If-None-Match": known})
        assert (again.status, await again.read(), again.headers["ETag"]) == (304, b"", mark)
        check_head(again.headers)
    changed = await client.get("/dashboard/app.js", headers={"If-None-Match": '"other"'})
    assert changed.status == 200
    assert (await client.get("/dashboard/dom.js")).headers["ETag"] != mark


async def test_head_of_a_file(inside: Inside) -> None:
    client = await inside(NOWHERE)
    answer = await client.head("/dashboard/style.css", headers={"Accept-Encoding": "identity"})
    assert (answer.status, await answer.read()) == (200, b"")
    assert answer.headers["Content-Length"] == str((FOLDER / "style.css").stat().st_size)


@pytest.mark.parametrize("path", ["/dashboard", "/dashboard/", "/dashboard/app.js", "/dashboard/nothing"])
async def test_without_a_token_it_says_what_to_set(inside: Inside, path: str) -> None:
    client = await inside(NOWHERE, admin={})
    answer = await client.get(path, allow_redirects=False)
    assert answer.status in ((404, 308) if path.endswith("/") else (404,))
    if answer.status == 404:
        assert "admin.token" in (await answer.json())["error"]["message"]


@pytest.mark.parametrize(
    "path",
    [
        "nothing.js",
        "../dashboard.py",
        "..%2fdashboard.py",
        "%2e%2e/app.py",
        "a/b",
        "app.js/",
        "%00",
        "index",
        "0123456789abcdef/nothing.js",
        "0123456789abcdef0/app.js",
        "a/app.js",
    ],
)
async def test_nothing_else_can_be_had(inside: Inside, path: str) -> None:
    client = await inside(NOWHERE)
    answer = await client.get(f"/dashboard/{path}")
    assert (answer.status, answer.content_type) == (404, "application/json")


async def test_a_slash_too_many_leads_to_the_page_whatever_stands_in_front(inside: Inside) -> None:
    client = await inside(NOWHERE)
    answer = await client.get("/dashboard/", allow_redirects=False)
    assert (answer.status, answer.headers["Location"]) == (308, "../dashboard")
    assert (await client.get("/dashboard/")).content_type == "text/html"


def test_page_refers_only_to_what_is_there() -> None:
    page = (FOLDER / "index.html").read_text()
    for other in re.findall(r'(?:src|href)="(?!#)([^"]+)"', page):
        is_made = other in ("./", "docs", f"dashboard/{SCRIPT}")
        assert is_made or (FOLDER.parent / other).is_file(), f"the page asks for {other}, which is not there"


async def test_one_script_has_every_module_once(inside: Inside) -> None:
    """The browser loads one file; that it does what the modules do is what all of tests/browser shows."""
    client = await inside(NOWHERE)
    script = await (await client.get(f"/dashboard/{SCRIPT}")).text()
    headings = re.findall(r"^// (\w+\.js)$", script, re.MULTILINE)
    assert sorted(headings) == sorted({*names(MODULES)} - {APART})
    assert headings[-1] == "app.js"
    assert re.findall(r"^(?:import|export)\b.*", script, re.MULTILINE) == []
    assert "import.meta" not in script
    for path in MODULES:
        for line in path.read_text().splitlines():
            if path.name != APART and line.strip() and not line.startswith(("import ", "export ")):
                assert line in script, f"{path.name}: {line}"


async def test_large_files_are_compressed_for_those_who_take_that(inside: Inside) -> None:
    client = await inside(NOWHERE)
    path = f"/dashboard/{SCRIPT}"
    plain, packed = [
        await client.get(path, headers={"Accept-Encoding": accepted}) for accepted in ("identity", "br, gzip")
    ]
    assert ("Content-Encoding" in plain.headers, packed.headers["Content-Encoding"]) == (False, "gzip")
    assert await packed.read() == await plain.read()  # the client of this test unpacks it
    assert 3 * int(packed.headers["Content-Length"]) < int(plain.headers["Content-Length"])
    assert packed.headers["Vary"] == plain.headers["Vary"] == "Accept-Encoding"
    marks = [answer.headers["ETag"] for answer in (plain, packed)]
    assert len({*marks}) == 2
    for mark, accepted in zip(marks, ("identity", "gzip"), strict=True):
        again = await client.get(path, headers={"Accept-Encoding": accepted, "If-None-Match": mark})
        assert again.status == 304
    for accepted in ("gzip;q=0", "deflate"):
        assert "Content-Encoding" not in (await client.get(path, headers={"Accept-Encoding": accepted})).headers


def test_modules_import_only_what_is_there() -> None:
    imports = re.compile(r'from "([^"]+)"|import\("([^"]+)"\)')
    found = {(path.name, where or other) for path in MODULES for where, other in imports.findall(path.read_text())}
    assert [each for each in found if not (each[1].startswith("./") and (FOLDER / each[1]).is_file())] == []


FORBIDDEN = {
    "another origin": r"https?://(?!www\.w3\.org/2000/svg)",
    "text that becomes markup": r"(inner|outer)HTML|insertAdjacentHTML|document\.write|DOMParser|createContextual",
    "text that becomes code": r"\beval\(|new Function|setTimeout\(\s*[\"'`]|javascript:",
    "an inline style or handler, which the policy refuses": r"\sstyle=\"|\son[a-z]+=\"|setAttribute\(\"style\"",
    "the token where others find it": r"localStorage.*token|document\.cookie|indexedDB",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_files_hold_no(what: str) -> None:
    found = {path.name: re.search(FORBIDDEN[what], path.read_text()) for path in FILES}
    assert [f"{name} holds {what}: {match[0]}" for name, match in found.items() if match] == []


def test_modules_are_short_and_say_what_they_are() -> None:
    lines = {path.name: path.read_text().splitlines() for path in MODULES}
    assert [name for name, each in lines.items() if not each[0].startswith("// ")] == []
    assert {name: len(each) for name, each in lines.items() if len(each) > 200} == {}


async def test_its_requests_are_not_worth_an_access_line(inside: Inside, capfd: pytest.CaptureFixture[str]) -> None:
    client = await inside(NOWHERE, server={"access_log": "json"})
    await client.get("/dashboard/app.js")
    await client.get("/admin/api/live", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
    await client.get("/admin/api/usage", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
    await client.close()
    received = capfd.readouterr().out
    assert "dashboard" not in received
    assert "live" not in received


async def test_root_leads_to_the_dashboard(inside: Inside) -> None:
    client = await inside(NOWHERE)
    answer = await client.get("/", allow_redirects=False)
    assert (answer.status, answer.headers["Location"]) == (302, "dashboard")
    assert without_version(await (await client.get("/")).text()) == (FOLDER / "index.html").read_text()


async def test_root_leads_to_the_reference_where_there_is_no_dashboard(inside: Inside) -> None:
    client = await inside(NOWHERE, admin={})
    answer = await client.get("/", allow_redirects=False)
    assert (answer.status, answer.headers["Location"]) == (302, "docs")
    assert (await client.get("/")).content_type == "text/html"
    assert (await client.post("/")).status == 405
