"""House rules, read from the source with `ast`. Each complaint says what to do instead.

The drawing of the floors stands here and nowhere else in code: `FLOORS`; the README shows it. Imports point down;
inside a package, freely; neighbours on one floor do not know each other, but for the topmost, where the commands live.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gateway"

FLOORS: dict[str, int] = {
    "config": 1, "mounts": 1, "folders": 1, "bites": 1,
    "records": 2, "capacity": 2, "key_labels": 2,
    "errors": 3, "tasks": 3,
    "rules": 4,
    "telemetry": 5, "tracing": 5, "reader": 5, "tokens": 5, "live_counters": 5,
    "store": 6, "journal": 6, "upstream": 6, "simulator": 6, "control": 6, "reload": 6, "exposition": 6,
    "ledger": 7, "lease": 7, "outlet": 7, "reports": 7, "registry": 7, "keybook": 7,
    "relay": 8, "alerts": 8,
    "bridging": 9,
    "pipeline": 10,
    "web": 11,
    "commands": 12, "cli": 12, "workers": 12, "worker": 12, "__main__": 12,
}  # fmt: skip
TOP = max(FLOORS.values())

Complaints = Iterator[str]


def modules() -> dict[str, str]:
    """Every module of the package by its dotted name, with its source."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return found


MODULES = modules()
PACKAGES = {".".join(path.parent.relative_to(ROOT).parts) for path in PACKAGE.rglob("__init__.py")}


def part_of(module: str) -> str:
    """The room a module stands in: gateway.store.batch -> store."""
    return module.split(".")[1] if "." in module else ""


# ------------------------------------------------------------------------------------------------------------ floors


def imported(module: str, tree: ast.AST, known: set[str], packages: set[str]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything of our own that a module imports, wherever in it."""
    package = module if module in packages else module.rpartition(".")[0]
    for node in ast.walk(tree):
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
    here = part_of(module)
    if here and here not in FLOORS:
        yield f"{module} stands on no floor: give {here!r} its place in FLOORS (tests/test_floors.py)."
        return
    for line, name in imported(module, ast.parse(source), known, packages):
        there = part_of(name)
        if there in ("", here):
            continue
        if not here:
            yield f"{module}:{line} imports {name}: the package itself imports nothing of its own."
        elif there not in FLOORS:
            yield f"{module}:{line} imports {name}, which stands on no floor: give {there!r} its place in FLOORS."
        elif FLOORS[there] > FLOORS[here]:
            yield (
                f"{module}:{line} (floor {FLOORS[here]}) imports {name} (floor {FLOORS[there]}): imports point down. "
                "Ask for a function or a value as an argument, or move what is needed lower."
            )
        elif FLOORS[there] == FLOORS[here] != TOP:
            yield (
                f"{module}:{line} imports its neighbour {name} (floor {FLOORS[here]}): neighbours do not know each "
                "other. Let the floor above pass a value between them, or move what both need lower."
            )


def test_imports_point_down() -> None:
    complaints = [c for name, source in MODULES.items() for c in wrong_imports(name, source, set(MODULES), PACKAGES)]
    assert not complaints, "\n".join(complaints)


def test_the_drawing_names_only_what_exists() -> None:
    assert set(FLOORS) == {part_of(name) for name in MODULES} - {""}


def test_the_readme_has_the_same_drawing() -> None:
    _, _, behind = (ROOT / "README.md").read_text().partition("Floors, imports pointing down only")
    lines = [line.split("      ")[0].split() for line in behind.split("```")[1].strip().splitlines()]
    assert {room: int(floor) for floor, *rooms in lines for room in rooms} == FLOORS


KNOWN = {"gateway", "gateway.config", "gateway.rules", "gateway.rules.sse", "gateway.store", "gateway.store.batch"} | {
    "gateway.upstream", "gateway.upstream.pool", "gateway.relay", "gateway.web", "gateway.cli", "gateway.workers",
}  # fmt: skip
PACKS = {"gateway", "gateway.rules", "gateway.store", "gateway.upstream", "gateway.web"}


@pytest.mark.parametrize(
    ("module", "source", "says"),
    [
        ("gateway.rules.sse", "from gateway.relay import x", "imports point down"),
        ("gateway.rules.sse", "from ..relay import x", "imports point down"),
        ("gateway.rules.sse", "from .. import relay", "imports point down"),
        ("gateway.rules.sse", "import gateway.web.app", "imports point down"),
        ("gateway.rules.sse", "def f():\n    from gateway import relay", "gateway.rules.sse:2"),
        ("gateway.config", "if TYPE_CHECKING:\n    from .records import Key", "imports point down"),
        ("gateway.store.batch", "from gateway.upstream import pool", "neighbours do not know each other"),
        ("gateway.store", "from ..upstream.pool import Pool", "neighbours do not know each other"),
        ("gateway.store", "from .new import x", ""),
        ("gateway.new", "import os", "stands on no floor"),
        ("gateway.web.app", "from gateway.new import x", "stands on no floor"),
        ("gateway", "from .config import Config", "imports nothing of its own"),
        ("gateway.relay", "from . import __version__", ""),
        ("gateway.relay", "from .rules import sse\nfrom gateway.store import batch\nimport os", ""),
        ("gateway.store.batch", "from . import StoreAway\nfrom .embedded import x\nfrom gateway.store import y", ""),
        ("gateway.cli", "from . import workers", ""),
    ],
)
def test_floor_rule_itself(module: str, source: str, says: str) -> None:
    complaints = "\n".join(wrong_imports(module, source, KNOWN, PACKS))
    assert says in complaints
    assert bool(complaints) == bool(says)


# ------------------------------------------------------------------------------------------------------- other rules


def bare_tasks(source: str) -> Complaints:
    for node in ast.walk(ast.parse(source)):
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
    """What a rule may not do: know the time, wait, or touch the world."""
    advice = "rules/ only decide: take `now`, bytes or a function as an argument, and act on a floor above."
    for node in ast.walk(ast.parse(source)):
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


# Calls whose result nobody can change, or that are live by their nature and named like constants.
FIXED = frozenset(
    {"frozenset", "tuple", "getLogger", "compile", "TypeVar", "NewType", "ContextVar", "RequestKey", "BeforeValidator"}
)


def module_state(source: str) -> Complaints:
    """Names at the top of a module that are bound to something that can change, but for constants in capitals."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
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
    text = ast.get_docstring(ast.parse(source))
    if not text:
        yield "1: has no docstring: open the file with the idea that it holds."


@pytest.mark.parametrize("module", MODULES)
def test_tasks_are_held(module: str) -> None:
    complaints = [] if module == "gateway.tasks" else [f"{module}:{c}" for c in bare_tasks(MODULES[module])]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("module", [name for name in MODULES if part_of(name) == "rules"])
def test_rules_are_pure(module: str) -> None:
    complaints = [f"{module}:{c}" for c in impure(MODULES[module])]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("module", MODULES)
def test_no_state_in_modules(module: str) -> None:
    complaints = [f"{module}:{c}" for c in module_state(MODULES[module])]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is(module: str) -> None:
    complaints = [f"{module}:{c}" for c in without_docstring(MODULES[module])]
    assert not complaints, "\n".join(complaints)


RULES = {
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


# ------------------------------------------------------------------------------------------------------ importing

IMPORT_EACH = """
import importlib, sys
KEPT = ("gateway", "gateway.config")  # which import nothing of ours, and take long
for name in sys.argv[1:]:
    for loaded in [n for n in sys.modules if n.split(".")[0] == "gateway" and n not in KEPT]:
        del sys.modules[loaded]
    try:
        importlib.import_module(name)
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}")
"""


def test_each_module_can_be_imported_alone() -> None:
    """Whichever comes first: a circle would show here. One process, our own modules forgotten before each."""
    names = [name for name in MODULES if name != "gateway.__main__"]  # which runs the command line
    said = subprocess.run(
        [sys.executable, "-c", IMPORT_EACH, *names], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert said.stdout == ""
