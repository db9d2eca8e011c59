"""The pages of docs agree with the code: they list every error code, field, command, metric and setting, and no
others."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from gateway import cli
from gateway.api import validation_errors
from gateway.config import build, resolve
from gateway.records import Record, Usage
from gateway.reports.calls import call_members
from tests.fakes.redis_servers import ROOT
from tests.test_docs import error_codes, metric_names, settings
from tests.test_floors import MODULES, nodes

from .examples import DEPLOY

DOCS = DEPLOY.parent / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), DEPLOY / "README.md"])


def page(name: str) -> str:
    return (DOCS / name).read_text()


def section(text: str, title: str) -> str:
    """From a heading to the next of its level."""
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The rows of tables whose first cell is in code font."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def named(text: str) -> list[str]:
    """The first cells of the tables."""
    return [row[0].strip("`| ") for row in rows(text)]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


# ------------------------------------------------------------------------------------------------------------ errors


def spelt_codes() -> set[str | None]:
    """Error codes that are composed at run time."""
    numbers = (1, 1.0)
    made = [
        *(validation_errors.above("n", each, each) for each in numbers),
        *(validation_errors.below("n", each, each) for each in numbers),
    ]
    return {
        error.code for error in [*made, *(validation_errors._empty("n", kind, "a") for kind in ("array", "string"))]
    }


def test_every_error_code_is_explained_once_and_no_other() -> None:
    assert sorted(named(page("errors.md"))) == sorted(map(str, error_codes() | spelt_codes()))


def test_every_error_has_its_status() -> None:
    statuses = {row[0].strip("`| "): row[1] for row in rows(page("errors.md"))}
    assert all(re.fullmatch(r"[45]\d\d( or [45]\d\d)?", status) for status in statuses.values())
    for source in MODULES.values():
        for each in (node for node in nodes(source) if isinstance(node, ast.ClassDef)):
            fixed = {
                ast.unparse(line.targets[0]): ast.literal_eval(line.value)
                for line in each.body
                if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
            }
            if {"code", "status"} <= set(fixed) and fixed["code"] is not None:
                assert statuses[fixed["code"]] == str(fixed["status"]), each.name


# -------------------------------------------------------------------------------------------------------------- logs


def written_fields() -> set[str]:
    """Fields of access lines: the arguments of `write`, and the fields of a refused call."""
    access = ast.parse((ROOT / "gateway" / "web" / "access_log.py").read_text())
    middleware = ast.parse((ROOT / "gateway" / "web" / "middleware.py").read_text())
    (carried,) = [node for node in ast.walk(access) if getattr(node, "name", "") == "write_record"]
    (refused,) = [node for node in ast.walk(middleware) if getattr(node, "name", "") == "_note"]
    fields = {keyword.arg for node in ast.walk(carried) if isinstance(node, ast.Call) for keyword in node.keywords}
    for node in ast.walk(refused):
        if isinstance(node, ast.Dict):
            fields |= {str(key.value) for key in node.keys if isinstance(key, ast.Constant)}
    return {"time", *map(str, fields)}


def test_every_field_of_an_access_line_is_explained_once_and_no_other() -> None:
    assert sorted(named(section(page("logs.md"), "The access line"))) == sorted(written_fields())


def test_every_field_of_a_record_is_explained_once_and_no_other() -> None:
    record = Record(
        "req_1", 0.0, "alice", None, "chat", "m", "m", "m", None, "main", 200, False, Usage(), "done", None, 0.1, 1
    )  # fmt: skip
    shown = call_members({**record._asdict(), "usage": record.usage._asdict()})
    assert sorted(named(section(page("logs.md"), "The usage record"))) == sorted(shown)


def test_messages_for_operators_are_said_somewhere() -> None:
    code = " ".join(path.read_text() for path in (ROOT / "gateway").rglob("*.py"))
    for beginning in named(section(page("logs.md"), "Messages for operators")):
        assert f'"{beginning} ' in code or f'"{beginning}:' in code, beginning


# ---------------------------------------------------------------------------------------------------------- runbook


NOT_SERVED = {"/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/projects/"}
"""Addresses that the pages name as not served, or as those of an upstream."""

COMMAND = re.compile(r"^(?:.* exec gateway |.* -- )?gateway (?P<arguments>.*)$", re.MULTILINE)


def commands() -> list[str]:
    """The gateway's commands in the code blocks of all pages."""
    shown = [block for path in PAGES for block in blocks(path.read_text(), "sh")]
    return [match["arguments"] for block in shown for match in COMMAND.finditer(block)]


@pytest.mark.parametrize("arguments", commands())
def test_every_command_can_be_typed(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        cli._parser().parse_args(shlex.split(arguments, comments=True))
        code = 0
    except SystemExit as ended:  # with 0 for --version
        code = int(ended.code or 0)
    assert code == 0, capsys.readouterr().err


def test_the_runbook_has_the_cases_that_people_look_for() -> None:
    for title in (
        "A user gets 429", "Usage does not add up with the invoice", "Rotate the OpenAI key", "Redis is full",
        "Upgrade without downtime", "Restore a backup", "An upstream is ill", "The gateway does not start",
        "The journal grows",
    ):  # fmt: skip
        text = section(page("runbook.md"), title)
        assert blocks(text, "sh"), title


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_name_only_what_there_is(path: Path) -> None:
    """Metrics, addresses, files, and headings of this page and others."""
    text = path.read_text()
    for metric in re.findall(r"\bgateway_[a-z_]+", text):
        assert metric in metric_names(), f"{path.name} names the metric {metric}"
    operations = [each for room in ("web", "formats", "wings") for each in (ROOT / "gateway" / room).rglob("*.py")]
    known = " ".join(each.read_text() for each in (*operations, ROOT / "config" / "tasks.yaml"))
    for address in re.findall(r"/(?:admin/api|v1)/[a-z_/]+", text):
        assert address in known or address in NOT_SERVED or "litellm" in path.name, f"{path.name} names {address}"
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]+))?\)", text):
        if target.startswith("http"):
            continue
        there = (path.parent / target).resolve() if target else path
        assert there.exists(), f"{path.name} links to {target}"
        if anchor:
            assert anchor in anchors(there), f"{path.name} links to {anchor}"


def anchors(path: Path) -> set[str]:
    """The anchors of headings, by GitHub's rule."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_first_page_of_the_site_leads_to_every_page_of_the_folder() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert sorted(page for page in pages if f"]({page})" not in index) == []


def test_alerts_lead_to_the_runbook() -> None:
    leads = re.findall(r"runbook: (\S+?)#(\S+)", (DEPLOY / "prometheus" / "alerts.yaml").read_text())
    assert leads
    for place, anchor in leads:
        assert anchor in anchors(ROOT / place), anchor


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_name_only_settings_that_there_are(path: Path) -> None:
    known = {*settings()} | {"defaults.models"}  # it has the settings of models.NAME
    sections = {name.partition(".")[0].partition("[")[0] for name in known}
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    # In a table of another program's settings only the second column has ours.
    lines = [
        line.split(" | ")[1] if "litellm" in path.name and line.startswith("| ") else line for line in text.splitlines()
    ]
    for shown in re.findall(r"`([a-z]+(?:\[\])?(?:\.[A-Za-z_]+(?:\[\])?)+)`", "\n".join(lines)):
        name = re.sub(r"^(upstreams|models|teams)\.[a-z]+\.", r"\1.NAME.", shown)  # a name from an example
        if not name.endswith((".py", ".yaml")) and name.partition(".")[0].partition("[")[0] in sections:
            assert name in known or any(each.startswith(f"{name}.") for each in known), f"{path.name} names {name}"


# ---------------------------------------------------------------------------------------------------------- LiteLLM


def test_the_configuration_beside_litellms_is_a_good_one() -> None:
    _, ours = blocks(page("from-litellm.md"), "yaml")
    given = dict.fromkeys(("MASTER_KEY", "OPENAI_API_KEY", "RESELLER_KEY"), "a-secret-that-is-long-enough")
    config = build(resolve(ours, given).values)
    assert [route.upstream for route in config.models["gpt-4o-mini"].routes] == ["openai", "reseller"]
