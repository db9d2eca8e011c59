"""Private names of libraries: which modules and classes use them, and whether the installed releases have them.

A release may move a private name without notice. These tests then fail with the name, instead of calls at run time.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp._websocket import reader, reader_py
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.values import MultiProcessValue

from tests.test_floors import nodes

GATEWAY = Path(__file__).parent.parent / "gateway"
PRICES = GATEWAY / "config" / "price_table.py"
AIOHTTP = GATEWAY / "web" / "http_guard" / "client_connection.py"
PROMETHEUS = GATEWAY / "observe" / "worker_files.py"
MESSAGES = GATEWAY / "wings" / "realtime" / "held_messages.py"

INHERITED: dict[str, tuple[type, set[str]]] = {
    "ClientConnection": (
        web.RequestHandler,
        {
            "_buffer_paused", "_current_request", "_keepalive_timeout", "_loop", "_messages",
            "_next_keepalive_close_time", "_pause_transport_reading", "_reading_paused", "_request_count",
            "_resume_transport_reading", "_waiter",
        },
    ),
    "GuardedServer": (web.Server, {"_connections", "_kwargs", "_loop"}),
    "Runner": (web.AppRunner, {"_kwargs", "_make_server"}),
    "Whole": (web.StreamResponse, {"_keep_alive", "_status"}),
    "EventStream": (web.StreamResponse, {"_keep_alive"}),
    "_Client": (web.WebSocketResponse, {"_reader"}),
    "_PoolConnector": (aiohttp.BaseConnector, {"_create_connection"}),
}  # fmt: skip
"""Our subclasses of aiohttp's classes: the private names of aiohttp that each uses or replaces."""


def private_imports(source: str) -> Iterator[str]:
    """Private names that are imported from libraries: `MODULE.NAME`."""
    for node in nodes(source):
        if isinstance(node, ast.ImportFrom) and not node.level and not (node.module or "").startswith("gateway"):
            yield from (f"{node.module}.{name.name}" for name in node.names if is_private(name.name))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@cache
def private_members(kind: type) -> set[str]:
    """The private attributes that instances of a class have: methods, slots, and what its methods assign to `self`."""
    found: set[str] = set()
    for each in [each for each in kind.__mro__ if each.__module__.startswith("aiohttp")]:
        found |= {*vars(each), *getattr(each, "__slots__", ())}
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(each)))):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and ast.unparse(node.value) == "self"
            ):
                found.add(node.attr)
    return {name for name in found if is_private(name)}


def used_members(made: ast.ClassDef) -> set[str]:
    """The private attributes of `self` that a class uses, and its private methods."""
    attributes = [node for node in ast.walk(made) if isinstance(node, ast.Attribute) and is_private(node.attr)]
    methods = {node.name for node in made.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    of_self = {node.attr for node in attributes if ast.unparse(node.value) in ("self", "super()")}
    return of_self | {name for name in methods if is_private(name)}


def our_subclasses() -> Iterator[ast.ClassDef]:
    """The classes of the gateway with a base of aiohttp."""
    for path in sorted(GATEWAY.rglob("*.py")):
        for node in nodes(path.read_text()):
            if isinstance(node, ast.ClassDef) and any(
                base.startswith(("web.", "aiohttp.")) for base in map(ast.unparse, node.bases)
            ):
                yield node


def test_private_imports_are_in_one_file_for_each_library() -> None:
    for path in GATEWAY.rglob("*.py"):
        text = path.read_text()
        if path not in (AIOHTTP, PRICES):
            assert [*private_imports(text)] == [], path
        if path not in (PROMETHEUS, MESSAGES):
            assert "noqa: SLF001" not in text, path


def test_every_private_import_exists() -> None:
    for path in (AIOHTTP, PRICES):
        for name in private_imports(path.read_text()):
            module, _, attribute = name.rpartition(".")
            assert hasattr(import_module(module), attribute), name


def test_the_table_of_subclasses_is_whole() -> None:
    """A subclass uses no private name of aiohttp that the table lacks, by accident either."""
    found = {made.name: made for made in our_subclasses()}
    for name, made in found.items():
        base = INHERITED[name][0] if name in INHERITED else getattr(web, ast.unparse(made.bases[0]).split(".")[-1])
        assert used_members(made) & private_members(base) == INHERITED.get(name, (base, set()))[1], name
    assert found.keys() >= INHERITED.keys()


@pytest.mark.parametrize(
    ("base", "name"), sorted({(base, name) for base, names in INHERITED.values() for name in names}, key=str)
)
def test_aiohttp_has_the_private_names_of_the_table(base: type, name: str) -> None:
    assert name in private_members(base)


def test_aiohttp_awaits_the_methods_that_are_replaced() -> None:
    assert inspect.iscoroutinefunction(aiohttp.BaseConnector._create_connection)
    assert inspect.iscoroutinefunction(web.AppRunner._make_server)


@pytest.mark.parametrize("name", ["_buffer", "_size", "_stalled_reader"])
def test_a_queue_of_messages_has_what_counts_them(name: str) -> None:
    for module in (reader, reader_py):
        assert hasattr(module.WebSocketDataQueue(None, 1, loop=None), name)


@pytest.mark.parametrize("name", ["_sum", "_upper_bounds", "_buckets"])
def test_a_histogram_has_what_the_metrics_use(name: str) -> None:
    assert hasattr(Histogram("seconds", "Seconds.", registry=CollectorRegistry()), name)


def test_a_value_has_what_the_files_of_a_worker_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    value = MultiProcessValue()("counter", "calls", "calls_total", (), (), "Calls.")
    assert {"_file", "_key", "_value"} <= vars(value).keys()
    assert {"_positions", "_m", "_used", "_capacity", "_fname"} <= vars(value._file).keys()
    assert callable(value._file._init_value)


def test_the_library_reads_the_files_of_live_counters() -> None:
    assert callable(MmapedDict.read_all_values_from_file)
