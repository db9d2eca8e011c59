"""The README says what the code does: every setting, metric, error code, command and floor stands in it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from gateway import cli, errors
from gateway.config import Config, Limits, Quota
from gateway.exposition import Reloads, Supervisor
from gateway.telemetry import KeyCollector, Telemetry

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


SHARED = {Quota: "quotas[]", Limits: "limits"}
"""Sections that stand in several places of the file, and once in the README."""


def settings(section: type[BaseModel] = Config, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting, by the path that the README gives it, with its field."""
    for name, field in section.model_fields.items():
        here = f"{path}.{name}" if path else name
        inner = _models(field.annotation)
        if not inner:
            yield here, field
        for model in inner:
            many = ".NAME" if "dict[" in str(field.annotation) else "[]" if "tuple[" in str(field.annotation) else ""
            yield from settings(model, SHARED.get(model, here + many))


@pytest.mark.parametrize(("path", "field"), [pytest.param(*row, id=row[0]) for row in dict(settings()).items()])
def test_every_setting_is_documented(path: str, field: Any) -> None:
    row = next((line for line in README.splitlines() if line.startswith(f"| `{path}` |")), None)
    assert row is not None, f"the README has no row for the setting {path}: {field.description}"
    assert field.description in row, f"the README says something else of {path} than its field: {field.description}"


def metric_names() -> list[str]:
    registry = CollectorRegistry()
    Telemetry([], 0, registry)
    registry.register(KeyCollector([], {}))
    registry.register(Supervisor(Reloads(1, {})))
    return [family.name + ("_total" if family.type == "counter" else "") for family in registry.collect()]


@pytest.mark.parametrize("name", metric_names())
def test_every_metric_is_documented(name: str) -> None:
    assert f"| `{name}` |" in README, f"the README does not say what {name} means"


def error_codes() -> set[str]:
    """Every `code="..."` in the package, and every class attribute `code`."""
    codes = {code for _, code, _ in errors._UPSTREAM.values()}
    for path in (ROOT / "gateway").rglob("*.py"):
        if "simulator" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            is_argument = isinstance(node, ast.keyword) and node.arg == "code"
            is_attribute = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "code"
            value = getattr(node, "value", None)
            if (is_argument or is_attribute) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                codes.add(value.value)
    return codes


@pytest.mark.parametrize("code", sorted(error_codes()))
def test_every_error_code_is_documented(code: str) -> None:
    assert f"`{code}`" in README, f"the README does not say when a client sees {code}"


def test_every_command_is_documented() -> None:
    (commands,) = (action for action in cli._parser()._actions if action.choices)
    for name in commands.choices or ():
        assert f"`gateway {name}" in README


def test_tour_names_every_module() -> None:
    tour = README[README.index("## A tour of the house") : README.index("## Decisions")]
    for path in (ROOT / "gateway").rglob("*.py"):
        place = path.relative_to(ROOT / "gateway")
        name = f"{place.parts[0]}/" if len(place.parts) > 1 and place.parts[0] != "rules" else place.name
        if name not in ("__init__.py", "__main__.py"):
            assert name in tour, f"the tour does not name {place}"


def test_readme_has_no_dead_links() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), f"{target} is not there"


def test_readme_has_no_gaps() -> None:
    assert "@@" not in README
