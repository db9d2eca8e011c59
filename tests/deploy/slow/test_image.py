"""The Dockerfile fits the code, and is a good one."""

from __future__ import annotations

import ast
import json
import re
from importlib.util import find_spec

from gateway import cli
from gateway.config.sections import ServerSettings
from tests.deploy.programs import run
from tests.fakes.redis_servers import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")


def instructions(name: str) -> list[str]:
    return [line.split(maxsplit=1)[1] for line in DOCKERFILE.splitlines() if line.startswith(f"{name} ")]


def test_a_linter_has_nothing_to_say() -> None:
    received = run("hadolint", ROOT / "Dockerfile")
    assert (received.returncode, received.stdout) == (0, "")


def test_it_runs_a_command_that_exists() -> None:
    (command,) = instructions("CMD")
    _, *arguments = json.loads(command)
    args = cli._parser().parse_args(arguments)
    assert (args.config, args.host) == ("/etc/gateway/gateway.yaml", "0.0.0.0")


def test_it_copies_only_what_is_there_and_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    for line in instructions("COPY"):
        if "--from" not in line:
            *sources, _ = line.split()
            assert all((ROOT / source).exists() and source not in ignored for source in sources), line


def test_it_copies_what_the_package_is_built_from() -> None:
    copied = " ".join(instructions("COPY")).split()
    assert {"pyproject.toml", "PACKAGE.md", "LICENSE", "gateway"} <= set(copied)


def test_its_user_is_a_number_and_not_root() -> None:
    (user,) = instructions("USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)


def test_its_health_check_is_the_packages_own() -> None:
    """tests/process/test_healthcheck.py runs it."""
    (check,) = instructions("HEALTHCHECK")
    *command, module = json.loads(check.partition("CMD ")[2])
    assert command == ["python", "-m"]
    assert find_spec(module) is not None
    assert instructions("EXPOSE") == [str(ServerSettings().port)]


def test_it_compiles_what_a_start_imports() -> None:
    (program,) = re.findall(r'bin/python -c "([^"]+)"', DOCKERFILE)
    (imports,) = ast.parse(" ".join(program.split())).body
    assert isinstance(imports, ast.Import)
    named = {each.name for each in imports.names}
    assert {"gateway.commands.serve", "gateway.process.worker"} <= named
    assert [name for name in named if find_spec(name) is None] == []
