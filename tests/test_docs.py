"""The README and the pages of docs say what the code does: every setting, metric, command and module."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from gateway import cli, errors
from gateway.accounting import bonds
from gateway.config import Limits, Quota, build, resolve
from gateway.config.sections import FullRows, LaterPrice, Price, PriceHours, PriceTier, Rows, TieredRows
from gateway.config.wings import model_kinds, whole_file
from gateway.formats.table import FORMATS
from gateway.observe.exposition import Reloads, SupervisorMetrics
from gateway.observe.metrics import KeyCollector, Telemetry
from tests.test_floors import MODULES, nodes

ROOT = Path(__file__).parent.parent
TASK_ROWS = ROOT / "config" / "tasks.yaml"
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
SETTINGS, METRICS = [(ROOT / "docs" / f"{page}.md").read_text() for page in ("configuration", "metrics")]


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


SHARED = {
    Quota: "quotas[]",
    Limits: "limits",
    model_kinds()[0]: "models.NAME",
    PriceTier: "models.NAME.price.tiers[]",
    Price: "models.NAME.price",
}
"""Sections that stand in several places of the file, and once on its page."""
AGAIN: dict[type[BaseModel], type[BaseModel]] = {
    PriceTier: Rows, TieredRows: TieredRows, PriceHours: TieredRows, LaterPrice: FullRows,
}  # fmt: skip
"""Sections with the settings of others, which stand on the page once."""


@cache
def _bodies(module: str) -> dict[str, list[ast.stmt]]:
    """The statements of each class of a module, whose source is parsed once."""
    parsed = ast.parse(inspect.getsource(sys.modules[module]))
    return {each.name: each.body for each in parsed.body if isinstance(each, ast.ClassDef)}


@cache
def _docstrings(section: type[BaseModel]) -> dict[str, str]:
    """What stands below each field of a section: pydantic would read it at each start of a gateway."""
    found: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        if issubclass(kind, BaseModel) and kind is not BaseModel:
            for field, below in pairwise(_bodies(kind.__module__).get(kind.__name__, [])):
                if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                    found[ast.unparse(field.target)] = inspect.cleandoc(ast.literal_eval(below.value))
    return found


def settings_of(section: type[BaseModel], path: str = "") -> Iterator[tuple[str, str]]:
    """Every setting, by the path that its page gives it, with what its field says."""
    for name, field in section.model_fields.items():
        if section in AGAIN and name in AGAIN[section].model_fields:
            continue
        here = f"{path}.{name}" if path else name
        inner = _models(field.annotation)
        if not inner:
            yield here, _docstrings(section)[name]
        for model in inner:
            many = ".NAME" if "dict[" in str(field.annotation) else "[]" if "tuple[" in str(field.annotation) else ""
            yield from settings_of(model, SHARED.get(model, here + many))


def settings() -> dict[str, str]:
    return dict(settings_of(whole_file()))


@pytest.mark.parametrize(("path", "said"), [pytest.param(*row, id=row[0]) for row in settings().items()])
def test_every_setting_is_documented(path: str, said: str) -> None:
    row = next((line for line in SETTINGS.splitlines() if line.startswith(f"| `{path}` |")), None)
    assert row is not None, f"configuration.md has no row for the setting {path}: {said}"
    assert said in row, f"configuration.md says something else of {path} than its field"


def test_no_setting_is_documented_that_does_not_exist() -> None:
    assert set(re.findall(r"^\| `([^`]+)` \|", SETTINGS, re.MULTILINE)) == settings().keys()


def metric_names() -> list[str]:
    registry = CollectorRegistry()
    Telemetry([], 0, registry)
    registry.register(KeyCollector([], {}))
    registry.register(SupervisorMetrics(Reloads(1, {})))
    return [family.name + ("_total" if family.type == "counter" else "") for family in registry.collect()]


def test_every_metric_is_documented_and_no_other() -> None:
    assert sorted(re.findall(r"^\| `([^`]+)` \|", METRICS, re.MULTILINE)) == sorted(metric_names())


def test_the_readmes_configuration_is_a_good_one() -> None:
    (given,) = re.findall(r"```yaml\n(store: .*?)```", README, re.DOTALL)
    names = re.findall(r"\$\{([A-Z_]+)\}", given)
    config = build(resolve(given, dict.fromkeys(names, "a-secret-that-is-long-enough")).values)
    assert [key.id for key in config.keys] == ["ci-bot"]


def error_codes() -> set[str]:
    """Every `code="..."` in the package, and every class attribute `code`."""
    codes = {code for _, code, _ in errors._UPSTREAM.values()}
    codes |= {code for _, code in bonds._NOT_FOUND.values() if code is not None}
    for module, source in MODULES.items():
        if module.startswith("gateway.simulator"):
            continue
        for node in nodes(source):
            is_argument = isinstance(node, ast.keyword) and node.arg == "code"
            is_attribute = (
                isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "code"
            )
            value = getattr(node, "value", None)
            if (is_argument or is_attribute) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                codes.add(value.value)
    return codes


def test_every_command_is_documented() -> None:
    (commands,) = (action for action in cli._parser()._actions if action.choices)
    for name in commands.choices or ():
        assert f"`gateway {name}" in (ROOT / "docs" / "commands.md").read_text()


def missing_places(table: str) -> list[str]:
    """What a table names that does not exist: files of the package, and functions in brackets behind one."""
    missing = []
    for path, _, name in re.findall(r"`([\w/]+\.(?:py|lua))`( \(`(\w+)`\))?", table):
        file = ROOT / "gateway" / path
        if not file.is_file() or (name and f"def {name}(" not in file.read_text()):
            missing.append(f"{path} {name}".strip())
    return missing


def test_the_architecture_says_where_things_are_decided() -> None:
    table = ARCHITECTURE.partition("## Where it is decided")[2].partition("## ")[0]
    assert table.count("?") > 15
    assert missing_places(table) == []


def test_places_that_are_gone_are_found() -> None:
    gone = "`relay/charge.py` (`of_stream`), `relay/gone.py`, `relay/charge.py` (`gone`), `store/redis/apply.lua`"
    assert missing_places(gone) == ["relay/gone.py", "relay/charge.py gone"]


def test_the_glossary_names_files_and_folders_that_exist() -> None:
    rows = [line.split("|") for line in (ROOT / "docs" / "glossary.md").read_text().splitlines()]
    places = [place for row in rows if len(row) == 6 for place in re.findall(r"`([\w/]+(?:\.py|/))`", row[3])]
    assert len(places) > 60
    assert [place for place in places if not (ROOT / "gateway" / place).exists()] == []


def modules_named(cell: str) -> dict[str, list[str]]:
    """The modules in a cell of the table of rooms, by their folder: `a.py`; `folder/` `b.py`."""
    parts = [re.findall(r"`([\w/.]+)`", part) for part in cell.split(";")]
    return {
        part[0] if part and part[0].endswith("/") else "": [name for name in part if name[-1] != "/"] for part in parts
    }


def test_the_architecture_names_every_module() -> None:
    """A row for each room names the modules of each of its folders, once, and no row names a module that is gone."""
    rows = {
        row[1].strip().strip("`/"): modules_named(row[3])
        for row in (line.split("|") for line in ARCHITECTURE.splitlines() if line.startswith("| `"))
        if len(row) == 5
    }
    rooms: dict[str, dict[str, list[str]]] = {}
    for path in sorted((ROOT / "gateway").rglob("*.py")):
        *folders, name = path.relative_to(ROOT / "gateway").parts
        if name != "__main__.py" and (folders or name != "__init__.py"):
            folder = f"{folders[1]}/" if len(folders) == 2 else ""
            found = rooms.setdefault(folders[0] if folders else name, {"": []}).setdefault(folder, [])
            found += [name] if folders and name != "__init__.py" else []
    rooms["wings"].pop("")  # the list alone
    assert {name: rows.get(name) for name in rooms} == rooms


def test_a_module_that_is_named_twice_is_found() -> None:
    assert modules_named("`a.py`; `x/` ; `a.py` `y/` `b.py`") != modules_named("`a.py`; `x/`; `y/` `b.py`")
    assert modules_named("`a.py` `b.py`; `x/` `a.py`") == {"": ["a.py", "b.py"], "x/": ["a.py"]}


def test_the_architecture_names_every_script_and_its_twin() -> None:
    """The rows of the table of the two stores name all scripts once, and modules that exist."""
    rows = [line.split("|") for line in ARCHITECTURE.partition("## One rule, two stores")[2].splitlines()]
    cells = [(row[1], row[2]) for row in rows if len(row) == 5]
    scripts = [name for one, _ in cells for name in re.findall(r"`(\w+\.lua)`", one)]
    assert sorted(scripts) == sorted(path.name for path in (ROOT / "gateway" / "store" / "redis").glob("*.lua"))
    twins = [name for _, other in cells for name in re.findall(r"`([\w/]+\.py)`", other)]
    assert [name for name in twins if not (ROOT / "gateway" / name).exists()] == []


PAPERS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAPERS, ids=lambda page: page.name)
def test_pages_link_to_what_exists(page: Path) -> None:
    text = page.read_text()
    for target in [*re.findall(r"\]\(([^)#\s]+)", text), *re.findall(r'(?:src|srcset)="([^"]+)"', text)]:
        assert target.startswith("http") or (page.parent / target).exists(), f"{target} does not exist"


@pytest.mark.parametrize("page", PAPERS, ids=lambda page: page.name)
def test_pages_name_only_tests_that_exist(page: Path) -> None:
    for named in named_tests(page.read_text()):
        assert (ROOT / named).exists(), f"{named} does not exist"


def named_tests(text: str) -> list[str]:
    return re.findall(r"`(tests/[\w/]+(?:\.py)?)`", text)


@pytest.mark.parametrize(
    ("page", "heading", "line", "number"),
    [
        ("guarantees", "What each failure costs", r"^\| (?!Failure|---).+$", 24),
        ("usage", "What a number in a report means", r"^- (?:.+\n?)(?:^  .+\n?)*", 6),
    ],
)
def test_each_promise_names_its_tests(page: str, heading: str, line: str, number: int) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = re.findall(line, text, re.MULTILINE)
    assert len(lines) >= number
    assert [each for each in lines if not named_tests(each)] == []


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 180


def test_readme_has_no_gaps() -> None:
    assert "@@" not in README


def test_the_table_of_offers_has_every_row_and_every_paid_endpoint() -> None:
    page = (ROOT / "docs" / "formats.md").read_text()
    table = page.partition("## What resellers offer\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert {len(row) for row in rows} == {5}
    routes = " ".join([row[1] for row in rows])
    prefixes = [
        row.get("prefix", "/v1/videos") for row in yaml.safe_load(TASK_ROWS.read_text())["passthrough"].values()
    ]
    paid = [spec.path for spec in FORMATS.values() if not spec.is_optional]
    found = [path.replace("{model}:generateContent", "{model}:…") for path in paid]
    assert [path for path in (*prefixes, *found) if f"`{path}" not in routes] == []
