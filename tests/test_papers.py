"""The project's papers: examples that load, links between the papers, forms for issues, versions of the changelog."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest
import yaml

import gateway
from gateway.config import Config, build, resolve

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*.yaml") if path.name != "compose.yaml")
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()


def load(path: Path) -> Config:
    """As `gateway check` reads it: whole, with every cross-check; each variable that it names has a value."""
    text = path.read_text()
    given = {name: f"a-secret-of-24-characters-{name}" for name in re.findall(r"\$\{(\w+)\}", text)}
    given |= {name: f"whsec_{'bm90LXJlYWQh' * 3}" for name in given if name == "HOOK_SECRET"}
    return build(resolve(text, given).values)


def example(name: str) -> Config:
    return load(ROOT / "examples" / name)


def ids(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", EXAMPLES, ids=ids)
def test_an_example_is_a_good_configuration(path: Path) -> None:
    config = load(path)
    assert config.models
    assert config.admin.token is None or config.admin.listen is not None  # clients do not reach the admin API


@pytest.mark.parametrize("path", EXAMPLES, ids=ids)
def test_an_example_holds_no_secret(path: Path) -> None:
    text = path.read_text()
    assert re.findall(r"(?:secret|api_key|token): (?!\$\{)\S+", text) == []


def test_every_example_is_listed() -> None:
    listed = set(re.findall(r"\]\(([\w/-]+\.yaml)\)", (ROOT / "examples" / "README.md").read_text()))
    found = {path.relative_to(ROOT / "examples").as_posix() for path in (ROOT / "examples").rglob("*.yaml")}
    assert listed == found - {"compose/gateway.yaml"}


def test_the_examples_show_what_they_say() -> None:
    assert [route.upstream for route in example("two-resellers.yaml").models["gpt-4o-mini"].routes] == [
        "cheap",
        "reliable",
    ]
    assert all(upstream.api_key is None for upstream in example("local-models.yaml").upstreams.values())
    assert set(example("team-quotas.yaml").teams) == {"platform", "research"}


def test_the_compose_example_fits_its_configuration() -> None:
    folder = ROOT / "examples" / "compose"
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    ours, config = services["gateway"], example("compose/gateway.yaml")
    named = set(re.findall(r"\$\{(\w+)\}", (folder / "gateway.yaml").read_text()))
    assert set(ours["environment"]) == named
    assert config.admin.address is not None
    assert {port.rpartition(":")[2] for port in ours["ports"]} == {
        str(config.server.port),
        str(config.admin.address[1]),
    }
    assert all(port.startswith("127.0.0.1:") for port in ours["ports"])
    waited = config.server.drain_delay_s + config.server.drain_timeout_s + 10
    assert ours["stop_grace_period"] == f"{waited:g}s"
    assert (folder / ours["build"] / "Dockerfile").resolve().exists()
    assert "redis" in services
    assert "@" not in config.store.url
    assert "//redis:6379/" in config.store.url


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md", "examples"])
def test_the_readme_links_to_each_paper(name: str) -> None:
    assert f"]({name}" in (ROOT / "README.md").read_text()


def test_each_command_of_make_that_a_paper_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for paper in (*ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.md"), ROOT / "examples" / "README.md"):
        for named in re.findall(r"(?:^\$ |`)make ([a-z-]+)", paper.read_text(), re.MULTILINE):
            assert named in targets, f"{paper.name} names `make {named}`"


CLIENTS = sorted((ROOT / "docs" / "clients").glob("*.md"))


@pytest.mark.parametrize("path", CLIENTS, ids=ids)
def test_a_page_of_a_client_says_whether_it_was_tried(path: Path) -> None:
    status = path.read_text().splitlines()[2]
    assert re.match(r"\*\*(Tested|Tried|Not tried|Not supported yet)(\.?\*\*|\*\* )", status), status
    if status.startswith("**Not tried"):
        assert "](https://" in status  # where its settings are from
    overview = (ROOT / "docs" / "clients.md").read_text()
    assert re.search(rf"clients/{path.name}\) \| {re.match(r'[*]+([A-Z][a-z ]+)', status)[1].lower()}\b", overview)


def test_every_client_is_listed_in_the_overview_and_in_the_site() -> None:
    pages = {f"clients/{path.name}" for path in CLIENTS}
    assert set(re.findall(r"\]\((clients/[\w-]+\.md)\)", (ROOT / "docs" / "clients.md").read_text())) == pages
    assert set(re.findall(r"- (clients/[\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)) == pages


@pytest.mark.parametrize("path", FORMS, ids=ids)
def test_an_issue_form_is_one(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    if path.name == "config.yml":
        assert form == {"blank_issues_enabled": False}
        return
    assert {"name", "description", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"input", "textarea", "dropdown", "checkboxes"}
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)


def test_every_version_has_a_date_and_the_newest_is_the_packages() -> None:
    titles = re.findall(r"^## (.+)$", CHANGELOG, re.MULTILINE)
    assert titles[0] == "Unreleased"
    versions = [re.fullmatch(r"(\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)", title) for title in titles[1:]]
    assert all(versions), titles
    found = [(version[1], date.fromisoformat(version[2])) for version in versions if version]
    assert found[0][0] == gateway.__version__
    assert [day for _, day in found] == sorted((day for _, day in found), reverse=True)


def test_the_changelog_says_how_to_upgrade() -> None:
    for title, text in re.findall(r"^## (\d.+?)\n(.*?)(?=^## |\Z)", CHANGELOG, re.MULTILINE | re.DOTALL)[:-1]:
        assert "### Upgrade from" in text, title
