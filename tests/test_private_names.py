"""Private names of libraries: which file uses them, and whether the installed releases still have them.

A release may move a private name without notice. These tests then fail with the name, instead of calls at run time.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.values import MultiProcessValue

GATEWAY = Path(__file__).parent.parent / "gateway"
PRICES = GATEWAY / "config" / "price_table.py"
AIOHTTP = GATEWAY / "web" / "http_guard" / "client_connection.py"
PROMETHEUS = tuple(GATEWAY / "observe" / name for name in ("metrics.py", "live_counters.py", "worker_files.py"))


def private_imports(tree: ast.AST) -> Iterator[str]:
    """Private names that are imported from libraries: `MODULE.NAME`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and not (node.module or "").startswith("gateway"):
            yield from (f"{node.module}.{name.name}" for name in node.names if is_private(name.name))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def inherited(tree: ast.Module, base: str) -> set[str]:
    """Private attributes of `self` that classes with this base use and do not define themselves."""
    used: set[str] = set()
    for made in [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]:
        if base not in map(ast.unparse, made.bases):
            continue
        own = {node.name for node in made.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        for node in ast.walk(made):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                own.add(node.value)  # of __slots__
        attributes = [node for node in ast.walk(made) if isinstance(node, ast.Attribute) and is_private(node.attr)]
        used |= {node.attr for node in attributes if ast.unparse(node.value) == "self"} - own
    return used


def test_only_one_file_for_each_library_uses_private_names() -> None:
    for path in GATEWAY.rglob("*.py"):
        text = path.read_text()
        if path not in (AIOHTTP, PRICES):
            assert [*private_imports(ast.parse(text))] == [], path
        if path not in PROMETHEUS:
            assert "noqa: SLF001" not in text, path


def test_every_private_import_exists() -> None:
    for path in (AIOHTTP, PRICES):
        for name in private_imports(ast.parse(path.read_text())):
            module, _, attribute = name.rpartition(".")
            assert hasattr(import_module(module), attribute), name


def test_aiohttp_has_what_a_connection_uses() -> None:
    tree = ast.parse(AIOHTTP.read_text())
    has = {name for each in web.RequestHandler.__mro__ for name in (*getattr(each, "__slots__", ()), *vars(each))}
    used = inherited(tree, "web.RequestHandler")
    assert used, "the connection uses no private name any more: delete this test"
    assert used - has == set()


def test_aiohttp_s_connectors_connect_by_a_method_of_this_name() -> None:
    """gateway/upstream/websocket.py has its own."""
    assert inspect.iscoroutinefunction(aiohttp.BaseConnector._create_connection)


@pytest.mark.parametrize("name", ["_sum", "_upper_bounds", "_buckets"])
def test_a_histogram_has_what_the_metrics_use(name: str) -> None:
    assert hasattr(Histogram("seconds", "Seconds.", registry=CollectorRegistry()), name)


def test_a_value_has_what_the_files_of_a_worker_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    value = MultiProcessValue()("counter", "calls", "calls_total", (), (), "Calls.")
    assert {"_file", "_key", "_value"} <= vars(value).keys()
    assert {"_positions", "_m"} <= vars(value._file).keys()


def test_the_library_reads_the_files_of_live_counters() -> None:
    assert callable(MmapedDict.read_all_values_from_file)
