"""House rules, read from the source with `ast`. Each complaint says what to do instead.

`FLOORS` defines the layers; docs/architecture.md has the same drawing. Imports point down; inside a package, freely;
packages of one layer do not import each other, except in the topmost layer.

A wing is a package of `gateway/wings`. Nothing of the trunk and no other wing imports it. Its module that a module of
the trunk asks for (`PARTS`) stands on the floor of that module, because it is loaded where that one is; its other
modules stand above the trunk.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gateway"

FLOORS: dict[str, int] = {
    "units": 0, "spelling": 0, "untrusted_json": 0, "wings": 0,
    "config": 1, "files": 1, "chunked": 1, "standard_webhooks": 1,
    "records": 2,
    "errors": 3, "tasks": 3,
    "api": 4, "quota": 4,
    "formats": 5,
    "observe": 6,
    "store": 7, "journal": 7, "upstream": 7, "simulator": 7,
    "accounting": 8, "keys": 8, "reports": 8,
    "relay": 9,
    "pipeline": 10,
    "web": 11,
    "cli": 12, "commands": 12, "process": 12, "__main__": 12,
}  # fmt: skip
TOP = max(FLOORS.values())

PARTS = {
    "settings": "config.wings",
    "formats": "formats.format",
    "pool": "upstream.pool",
    "upstream_answers": "upstream.provider_errors",
    "bridges": "formats.bridges",
    "metrics": "observe.metrics",
    "background": "web.background",
    "batch_results": "relay.deferred",
    "binding": "web.endpoints",
    "callers": "web.callers",
    "sign_in": "web.callers",
    "check": "commands.check",
    "online": "commands.online",
    "demo_history": "commands.simulate",
    "usage": "commands.usage",
    "command": "cli",
    "endpoints": "web.wings",
    "paths": "web.middleware",
    "ready": "web.ops",
    "layers": "pipeline.stack",
    "amending": "pipeline.services",
    "overlay": "keys.cache",
    "disclosing": "pipeline.services",
}
"""The module of the trunk that asks every wing for its module of this name."""

Complaints = Iterator[str]


def modules() -> dict[str, str]:
    """Every module of the package by its dotted name, with its source."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


MODULES = modules()


@cache
def parsed(source: str) -> ast.Module:
    """The syntax tree of a module, cached: several rules read it."""
    return ast.parse(source)


@cache
def nodes(source: str) -> Sequence[ast.AST]:
    """All nodes of the tree."""
    return tuple(ast.walk(parsed(source)))


for _source in MODULES.values():
    nodes(_source)  # once, before the processes of the fast tier are forked: rules of several files read them


PACKAGES = {".".join(path.parent.relative_to(ROOT).parts) for path in PACKAGE.rglob("__init__.py")}


def part_of(module: str) -> str:
    """The package of a module: gateway.store.batch -> store; of a wing gateway.wings.alerts.policy -> wings.alerts."""
    parts = module.split(".")
    return ".".join(parts[1:3]) if parts[1:2] == ["wings"] else "".join(parts[1:2])


def floor_of(module: str) -> int | None:
    """The layer of a module; None: it has none."""
    room = part_of(module)
    if not room.startswith("wings."):
        return FLOORS.get(room)
    asking = PARTS.get(".".join(module.split(".")[3:]))
    return TOP + 1 if asking is None else FLOORS[part_of(f"gateway.{asking}")]


# ------------------------------------------------------------------------------------------------------------ floors


def imported(module: str, source: str, known: set[str], packages: set[str]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import of `gateway` in a module, at any place."""
    package = module if module in packages else module.rpartition(".")[0]
    for node in nodes(source):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "gateway":
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            if base.split(".")[0] == "gateway":
                for alias in node.names:
                    full = f"{base}.{alias.name}"
                    yield node.lineno, full if full in known else base


def wrong_imports(module: str, source: str, known: set[str], packages: set[str]) -> Complaints:
    here, floor = part_of(module), floor_of(module)
    if here and floor is None:
        yield f"{module} stands on no floor: give {here!r} its place in FLOORS (tests/test_floors.py)."
        return
    for line, name in imported(module, source, known, packages):
        there, its_floor = part_of(name), floor_of(name)
        if there in ("", here):
            continue
        if floor is None:
            yield f"{module}:{line} imports {name}: the package itself imports nothing of its own."
        elif there.startswith("wings."):
            yield (
                f"{module}:{line} imports {name}, a module of a wing, which may be absent. Ask for its values by the "
                "list of wings (`parts` of gateway/wings/__init__.py)."
            )
        elif its_floor is None:
            yield f"{module}:{line} imports {name}, which stands on no floor: give {there!r} its place in FLOORS."
        elif its_floor > floor:
            yield (
                f"{module}:{line} (floor {floor}) imports {name} (floor {its_floor}): imports point down. "
                "Ask for a function or a value as an argument, or move what is needed lower."
            )
        elif its_floor == floor != TOP and not here.startswith("wings."):
            yield (
                f"{module}:{line} imports its neighbour {name} (floor {floor}): neighbours do not know each "
                "other. Let the floor above pass a value between them, or move what both need lower."
            )


def test_imports_point_down() -> None:
    complaints = [c for name, source in MODULES.items() for c in wrong_imports(name, source, set(MODULES), PACKAGES)]
    assert not complaints, "\n".join(complaints)


def test_the_drawing_names_only_what_exists() -> None:
    assert set(FLOORS) == {part_of(name) for name in MODULES if not part_of(name).startswith("wings.")} - {""}
    assert {f"gateway.{asking}" for asking in PARTS.values()} <= set(MODULES)
    asked = {part: asking for part, asking in PARTS.items() if f'"{part}")' not in MODULES[f"gateway.{asking}"]}
    assert not asked, "these modules ask no wing for its part"


def test_the_architecture_page_has_the_same_drawing() -> None:
    drawing = (ROOT / "docs" / "architecture.md").read_text().partition("## Floors")[2].split("```")[1]
    lines = [line.split() for line in drawing.strip().splitlines()]
    assert {room: int(floor) for floor, *rooms in lines for room in rooms} == FLOORS


KNOWN = {"gateway", "gateway.config", "gateway.api", "gateway.api.auth", "gateway.store", "gateway.store.batch"} | {
    "gateway.upstream", "gateway.upstream.pool", "gateway.relay", "gateway.web", "gateway.cli", "gateway.process",
    "gateway.wings", "gateway.wings.one", "gateway.wings.one.usage", "gateway.wings.one.rest", "gateway.wings.two",
}  # fmt: skip
PACKS = {"gateway", "gateway.api", "gateway.store", "gateway.upstream", "gateway.web"} | {
    "gateway.wings", "gateway.wings.one", "gateway.wings.two",
}  # fmt: skip


@pytest.mark.parametrize(
    ("module", "source", "says"),
    [
        ("gateway.api.auth", "from gateway.relay import x", "imports point down"),
        ("gateway.api.auth", "from ..relay import x", "imports point down"),
        ("gateway.api.auth", "from .. import relay", "imports point down"),
        ("gateway.api.auth", "import gateway.web.app", "imports point down"),
        ("gateway.api.auth", "def f():\n    from gateway import relay", "gateway.api.auth:2"),
        ("gateway.config", "if TYPE_CHECKING:\n    from .records import Key", "imports point down"),
        ("gateway.store.batch", "from gateway.upstream import pool", "neighbours do not know each other"),
        ("gateway.store", "from ..upstream.pool import Pool", "neighbours do not know each other"),
        ("gateway.store", "from .new import x", ""),
        ("gateway.new", "import os", "stands on no floor"),
        ("gateway.web.app", "from gateway.new import x", "stands on no floor"),
        ("gateway", "from .config import Config", "imports nothing of its own"),
        ("gateway.relay", "from . import __version__", ""),
        ("gateway.relay", "from .api import auth\nfrom gateway.store import batch\nimport os", ""),
        (
            "gateway.store.batch",
            "from . import StoreUnavailable\nfrom .embedded import x\nfrom gateway.store import y",
            "",
        ),
        ("gateway.cli", "from . import process", ""),
        ("gateway.config", "from gateway.wings import parts", ""),
        ("gateway.cli", "from gateway.wings.one import rest", "which may be absent"),
        ("gateway.cli", "def f():\n    from .wings.one.usage import x", "which may be absent"),
        ("gateway.wings", "from .one.usage import x", "which may be absent"),
        ("gateway.wings.two", "from gateway.wings.one import rest", "which may be absent"),
        ("gateway.wings.one.usage", "from .rest import x\nfrom gateway.cli import y", ""),
        ("gateway.wings.one.rest", "from gateway.cli import x\nfrom gateway.wings import parts", ""),
    ],
)
def test_floor_rule_itself(module: str, source: str, says: str) -> None:
    complaints = "\n".join(wrong_imports(module, source, KNOWN, PACKS))
    assert says in complaints
    assert bool(complaints) == bool(says)


# ------------------------------------------------------------------------------------------------------- other rules


def bare_tasks(source: str) -> Complaints:
    for node in nodes(source):
        if isinstance(node, ast.Attribute | ast.Name | ast.alias):
            name = (
                node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else node.name
            )
            if name in ("create_task", "ensure_future", "TaskGroup"):
                yield f"{node.lineno}: {name}: a task that nobody holds is lost with its error; use tasks.Tasks.spawn."


CLOCKS = frozenset({
    "time", "asyncio", "random", "secrets", "os", "io", "socket", "ssl", "threading", "subprocess", "pathlib",
    "tempfile", "shutil", "logging", "uuid", "sqlite3", "urllib", "http", "concurrent", "signal", "select", "aiohttp",
    "redis", "uvloop",
})  # fmt: skip
NOW = frozenset({"now", "today", "utcnow"})
DEEDS = frozenset({"open", "print", "input"})


def impure(source: str) -> Complaints:
    """What a pure module may not do: read a clock, wait, or do I/O."""
    advice = "A pure module only decides: take `now`, bytes or a function as an argument, and act on a floor above."
    for node in nodes(source):
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names if alias.name.split(".")[0] in CLOCKS]
            case ast.ImportFrom(module=str(name), level=0):
                found = [name] if name.split(".")[0] in CLOCKS else []
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=verb)) if owner in ("datetime", "date"):
                found = [f"{owner}.{verb}"] if verb in NOW else []
            case ast.Call(func=ast.Name(id=name)) if name in DEEDS:
                found = [name]
            case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                found = ["async"]
            case _:
                continue
        for name in found:
            yield f"{node.lineno}: {name}: {advice}"


# Calls with an immutable result, or with one that is meant to be live and is named like a constant.
FIXED = frozenset(
    {"frozenset", "tuple", "getLogger", "compile", "TypeVar", "NewType", "ContextVar", "RequestKey", "BeforeValidator"}
)


def module_state(source: str) -> Complaints:
    """Module-level names bound to mutable values, except constants in capitals."""
    tree = parsed(source)
    for node in nodes(source):
        if isinstance(node, ast.Global):
            yield f"{node.lineno}: global {', '.join(node.names)}: hold state in an object that is passed on."
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=targets, value=value):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                names = [name]
            case _:
                continue
        for name in names:
            if is_live(value) and not name.lstrip("_").isupper() and not name.startswith("__"):
                yield (
                    f"{statement.lineno}: {name} can be changed by whoever reaches the module: put it into an object, "
                    "or, if it is a table that nobody changes, name it in CAPITALS."
                )


def is_live(value: ast.expr) -> bool:
    if isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp):
        return True
    if not isinstance(value, ast.Call):
        return False
    called = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
    return called not in FIXED


def without_docstring(source: str) -> Complaints:
    text = ast.get_docstring(parsed(source))
    if not text:
        yield "1: has no docstring: open the file with the idea that it holds."


def complaints_of(rule: Callable[[str], Complaints], modules: Iterable[str]) -> str:
    """The complaints of a rule about these modules, one per line."""
    return "\n".join(f"{module}:{complaint}" for module in modules for complaint in rule(MODULES[module]))


def endless(source: str) -> set[str]:
    """The coroutine functions of a module with a loop that only its inside, a failure or a cancellation ends."""
    return {
        node.name
        for node in nodes(source)
        if isinstance(node, ast.AsyncFunctionDef)
        for inner in ast.walk(node)
        if isinstance(inner, ast.While) and isinstance(inner.test, ast.Constant)
    }


def endless_that_ends(source: str, everywhere: Collection[str]) -> Complaints:
    """Spawned loops, which an exception ends until a restart. Those of other modules are known `everywhere`."""
    here = endless(source)
    for node in nodes(source):
        match node:
            case ast.Call(func=ast.Attribute(attr="spawn"), args=[ast.Call(func=work), *_]):
                name = ast.unparse(work)
                known = here if name.count(".") == name.startswith("self.") else everywhere
                if name.rpartition(".")[2] in known:
                    yield f"{node.lineno}: {name}: an exception would end it; use tasks.Tasks.keep."


MAY_END: Mapping[str, str] = {
    "gateway.tasks": "_again_and_again",  # is what begins again
    "gateway.process.supervisor": "process.wait",  # of a process, not of this package
    "gateway.wings.alerts.outbox": "self._deliver",  # of one alert, which is given up
}


def test_endless_work_outlives_its_exceptions() -> None:
    everywhere = {name for source in MODULES.values() for name in endless(source)}
    found = {name: list(endless_that_ends(source, everywhere)) for name, source in MODULES.items()}
    assert {name: ended for name, ended in found.items() if ended and name not in MAY_END} == {}
    assert [name for name in MAY_END if len(found.get(name, ())) > 1] == []  # without a wing it may be none


def test_tasks_are_held() -> None:
    assert complaints_of(bare_tasks, MODULES.keys() - {"gateway.tasks"}) == ""


PURE = frozenset({
    "api", "formats", "quota", "store.rules",
    "accounting.outage", "accounting.call_record",
    "config.discovered", "config.model_names",
    "keys.restoration", "keys.token_bucket",
    "observe.span_attributes",
    "relay.charge",
    "upstream.circuit_breaker", "upstream.error_shapes", "upstream.learned_limits",
    "upstream.provider_errors", "upstream.refusal", "upstream.retry_policy", "upstream.status",
    "web.admin.request_bodies", "web.http_guard.login_throttle",
})  # fmt: skip
"""Modules and packages of the trunk that decide without a clock, I/O or async: their tests are tables. Those of a wing
are named by its tests."""

IMPURE = frozenset({"gateway.api.tokenizer"})
"""Modules of a pure package that load something."""


def is_pure(module: str) -> bool:
    parts = module.split(".")[1:]
    above = {".".join(parts[: i + 1]) for i in range(len(parts))}
    return module not in IMPURE and bool(PURE & above)


def test_the_pure_list_names_only_modules_that_exist() -> None:
    known = {name.removeprefix("gateway.") for name in MODULES}
    assert known >= PURE
    assert set(MODULES) >= IMPURE


def test_pure_modules_are_pure() -> None:
    assert complaints_of(impure, filter(is_pure, MODULES)) == ""


def test_no_state_in_modules() -> None:
    assert complaints_of(module_state, MODULES) == ""


def test_every_module_says_what_it_is() -> None:
    assert complaints_of(without_docstring, MODULES) == ""


def repeated_types(sources: dict[str, str]) -> Complaints:
    """Public classes that two modules define: one name, one idea."""
    homes: dict[str, list[str]] = {}
    for module, source in sources.items():
        for node in parsed(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    for name, modules_of_it in homes.items():
        if len(modules_of_it) > 1:
            yield f"{name} is defined in {', '.join(modules_of_it)}: give each its own name."


def test_public_type_names_are_unique() -> None:
    complaints = list(repeated_types(MODULES))
    assert not complaints, "\n".join(complaints)


def test_the_rule_for_unique_type_names_itself() -> None:
    assert list(repeated_types({"a": "class X: ...", "b": "class X: ..."}))
    assert not list(repeated_types({"a": "class X: ...\nclass _Y: ...", "b": "class _Y: ...\ndef X(): ..."}))


RULES = {
    "endless": lambda source: endless_that_ends(source, endless(source)),
    "tasks": bare_tasks,
    "pure": impure,
    "state": module_state,
    "docstring": without_docstring,
}


@pytest.mark.parametrize(
    ("rule", "source", "is_fine"),
    [
        ("tasks", "asyncio.create_task(f())", False),
        ("tasks", "loop.create_task(f())", False),
        ("tasks", "from asyncio import ensure_future", False),
        ("tasks", "async def f():\n    async with asyncio.TaskGroup() as group: ...", False),
        ("tasks", "tasks.spawn(f(), 'name')", True),
        ("endless", "async def f():\n    while True: ...\ntasks.spawn(f(), 'name')", False),
        ("endless", "async def run():\n    while True: ...\ntasks.spawn(self._x.run(), 'name')", False),
        ("endless", "class A:\n    async def f(self):\n        while True: ...\ntasks.spawn(self.f(), 'name')", False),
        ("endless", "async def f():\n    while True: ...\ntasks.keep(f, 'name')", True),
        ("endless", "async def f():\n    while x: ...\ntasks.spawn(f(), 'name')", True),
        ("pure", "import time", False),
        ("pure", "import os.path", False),
        ("pure", "def f():\n    from asyncio import sleep", False),
        ("pure", "datetime.now(UTC)", False),
        ("pure", "date.today()", False),
        ("pure", "open('x')", False),
        ("pure", "async def f(): ...", False),
        ("pure", "from datetime import UTC, datetime\ndatetime.fromtimestamp(now, UTC)", True),
        ("pure", "import json, re\nfrom . import time", True),
        ("state", "cache = {}", False),
        ("state", "cache: dict[str, int] = dict()", False),
        ("state", "pool = Pool()", False),
        ("state", "a = b = []", False),
        ("state", "_seen = {x for x in y}", False),
        ("state", "def f():\n    global x\n    x = 1", False),
        ("state", "log = logging.getLogger('gateway')\nT = TypeVar('T')\nname = 'x'\n_TABLE = {}\n__all__ = []", True),
        ("state", "def f():\n    cache = {}", True),
        ("state", "class A:\n    names = []", True),
        ("docstring", "import os", False),
        ("docstring", '""""""', False),
        ("docstring", '"""A thing."""', True),
    ],
)
def test_rules_themselves(rule: str, source: str, is_fine: bool) -> None:
    complaints = list(RULES[rule](source))
    assert bool(complaints) != is_fine, complaints
