"""What cannot be loaded is a fault of the configuration: its place, what it is, and what to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main
from gateway.config import Config, ConfigError, build, resolve
from gateway.config.source import Source
from gateway.process.reload import Reloader
from gateway.wings.plugins.check import describe
from gateway.wings.plugins.loading import load
from gateway.wings.plugins.settings import loaded
from tests.test_floors import MODULES, PACKAGES, imported

SECRET = "an-option-that-is-secret"
HEAD = "from gateway.wings.plugins import Plugin\n"
GOOD = f"""{HEAD}
class Good(Plugin):
    interface, name, version = 1, "good", "2.1"
    def __init__(self, level=1): self.level = level
    def head(self, attempt, head): pass
    async def around_call(self, call, carry): await carry()
"""


def of_class(body: str, head: str = 'interface, name = 1, "one"') -> str:
    return f"{HEAD}class Made(Plugin):\n    {head}\n" + "".join([f"    {line}\n" for line in body.splitlines()])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in PYTHONPATH."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def configured(plugins: Any, folder: Path, **more: Any) -> Config:
    store = {"url": f"embedded:{folder / 'data'}", "journal_dir": str(folder / "journal")}
    models = {"m": {"routes": [{"upstream": "up"}]}}
    upstreams = {"up": {"base_url": "http://127.0.0.1:9/v1"}}
    return build({"upstreams": upstreams, "models": models, "store": store, "plugins": plugins, **more})


def faults(plugins: Any, folder: Path) -> list[str]:
    with pytest.raises(ConfigError) as error:
        configured(plugins, folder)
    return [str(each) for each in error.value.faults]


METHOD = "def head(self, attempt, head): pass"
BROKEN = [
    ("", "no_such_package.module:Made", "there is no module 'no_such_package'", "PYTHONPATH"),
    ("import no_such_module", "{}:Made", "its module needs the module 'no_such_module', which is not installed", ""),
    (f"raise ValueError('{SECRET} x')", "{}:Made", "cannot be imported: ValueError: *** x", ""),
    ("import sys; sys.exit(3)", "{}:Made", "cannot be imported: SystemExit: 3", ""),
    ("class", "{}:Made", "cannot be imported: SyntaxError: ", ""),
    (GOOD, "{}:Godo", "there is no 'Godo' in the module", "did you mean 'Good'?"),
    ("Made = 7", "{}:Made", "'Made' cannot be called", "name a class of a plug-in"),
    ("async def Made(**_): pass", "{}:Made", "the factory is a coroutine function", "write def"),
    (f"def Made(**_): raise OSError('{SECRET}')", "{}:Made", "the factory has failed: OSError: ***", ""),
    ("import sys\ndef Made(**_): sys.exit('bye')", "{}:Made", "the factory has failed: SystemExit: bye", ""),
    ("def Made(**_): pass", "{}:Made", "the factory has made nothing", "gateway.wings.plugins.Plugin"),
    ("def Made(**_): return []", "{}:Made", "the factory has made a value of the type list", ""),
    (of_class(f"def __init__(self, token): pass\n{METHOD}", "name = 'x'"), "{}:Made",
     "does not name the version of the interface", "add interface = 1"),
    (of_class(f"def __init__(self, token): pass\n{METHOD}", "interface, name = 2, 'x'"), "{}:Made",
     "for version 2 of the interface, and this gateway has version 1", "use a newer gateway"),
    (of_class(f"def __init__(self, token): pass\n{METHOD}", "interface, name = '1', 'x'"), "{}:Made",
     "does not name the version of the interface", ""),
    (of_class(f"def __init__(self, token): pass\n{METHOD}", "interface = 1"), "{}:Made", "has no name", "add name ="),
    (of_class(f"def __init__(self, token): pass\n{METHOD}", "interface, name, version = 1, 'x', 2"), "{}:Made",
     "version is no text", ""),
    (of_class("def __init__(self, token): pass"), "{}:Made", "has none of the methods: before_attempt, ", ""),
    (of_class("def __init__(self, token): pass\nasync def head(self, attempt, head): pass"), "{}:Made",
     "head is a coroutine function", "write def, not async def"),
    (of_class("def __init__(self, token): pass\ndef around_call(self, call, carry): pass"), "{}:Made",
     "around_call has to be a coroutine function", "write async def"),
    (of_class("def __init__(self, token): pass\ndef end(self, attempt): pass"), "{}:Made",
     "end has other parameters than (self, attempt, end)", ""),
    (of_class(f"def __init__(self, token): pass\n{METHOD}\n@property\ndef version(self): raise OSError('{SECRET}')"),
     "{}:Made", "it cannot be looked at: OSError: ***", ""),
    (f"def __getattr__(name): raise OSError('{SECRET}')", "{}:Made", "it cannot be looked at: OSError: ***", ""),
]  # fmt: skip


@pytest.mark.parametrize(("source", "use", "says", "advises"), BROKEN)
def test_a_plug_in_that_cannot_be_loaded(folder: Path, source: str, use: str, says: str, advises: str) -> None:
    module = f"plug_in_{BROKEN.index((source, use, says, advises))}"
    (folder / f"{module}.py").write_text(source)
    (fault,) = faults([{"use": use.format(module), "options": {"token": SECRET}}], folder)
    assert fault.startswith(f"plugins[0]: {use.format(module)}: ")
    assert says in fault
    assert advises in fault
    assert SECRET not in fault


def test_an_option_that_a_plug_in_does_not_take_has_its_place(folder: Path) -> None:
    (folder / "options_of_good.py").write_text(GOOD)
    (fault,) = faults([{"use": "options_of_good:Good", "options": {"levle": 1}}], folder)
    assert fault.startswith("plugins[0].options: options_of_good:Good: the factory (level=1) does not take these")
    assert "levle" in fault


def test_all_faults_are_said_at_once(folder: Path) -> None:
    (folder / "half_good.py").write_text(GOOD)
    found = faults(["half_good:Good", "missing_one:X", {"use": "half_good:Bad"}], folder)
    assert [each.partition(":")[0] for each in found] == ["plugins[1]", "plugins[2]"]


@pytest.mark.parametrize("use", ["module", "a.b:", ":c", "a b:c", "a:b()", 7])
def test_the_form_of_an_entry(folder: Path, use: Any) -> None:
    (fault,) = faults([{"use": use}], folder)
    assert fault.startswith("plugins[0].use: expected")
    assert faults("good:Good", folder) == ["plugins: expected a list, such as [{use: ...}]"]


def test_both_forms_make_a_plug_in_that_an_unchanged_entry_keeps(folder: Path) -> None:
    (folder / "kept_good.py").write_text(GOOD)
    plugins = ["kept_good:Good", {"use": "kept_good:Good", "options": {"level": 3}}]
    first, again = [loaded(configured(plugins, folder)) for _ in range(2)]
    assert [each.plugin.level for each in first] == [1, 3]
    assert [one.plugin is other.plugin for one, other in zip(first, again, strict=True)] == [True, True]
    assert describe(configured(plugins, folder)) == "good 2.1 (head, around_call); good 2.1 (head, around_call)"
    assert describe(configured([], folder)) == "none"


def test_options_are_in_no_text_of_the_configuration(folder: Path) -> None:
    (folder / "hidden_good.py").write_text(GOOD)
    config = configured([{"use": "hidden_good:Good", "options": {"level": SECRET}}], folder)
    assert SECRET not in repr(config)


def test_the_check_lists_and_refuses(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(folder, "check_good:Good")
    (folder / "check_good.py").write_text(GOOD)
    assert main(["check", str(file)]) == 0
    assert "  plug-ins   good 2.1 (head, around_call)\n" in capsys.readouterr().out
    written(folder, "check_bad:Good")
    assert main(["check", str(file)]) == 2
    assert f"{file}:5: plugins[0]: check_bad:Good: there is no module 'check_bad'" in capsys.readouterr().err


def written(folder: Path, use: str) -> Path:
    file = folder / "gateway.yaml"
    file.write_text(
        f"store: {{url: 'embedded:{folder}/data', journal_dir: {folder}/journal}}\n"
        "upstreams: {up: {base_url: http://127.0.0.1:9/v1, api_key: a-key-of-some-upstream}}\n"
        "models: {m: {routes: [{upstream: up}]}}\n"
        f"plugins:\n  - {use}\n"
    )
    return file


async def test_a_reload_with_a_broken_plug_in_changes_nothing(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def hand_over(values: Mapping[str, Any]) -> None:
        handed.append(values)

    (folder / "reload_good.py").write_text(GOOD)
    (folder / "reload_bad.py").write_text("raise ValueError('not yet')")
    handed: list[Mapping[str, Any]] = []
    source = Source(str(written(folder, "reload_good:Good")), {})
    reloader = Reloader(await asyncio.to_thread(source.read), source, hand_over)
    written(folder, "reload_bad:Good")
    refused = await reloader.reload("a test")
    assert (refused.code, handed) == ("invalid_configuration", [])
    assert "plugins[0]: reload_bad:Good: its module cannot be imported: ValueError: not yet" in refused.faults[0]
    assert [each.name for each in loaded(reloader.now.config)] == ["good"]
    (folder / "reload_bad.py").write_text(GOOD.replace('"good"', '"better"'))  # a module that failed is read again
    assert (await reloader.reload("a test")).code is None
    assert [each.name for each in loaded(reloader.now.config)] == ["better"]
    assert [each["plugins"] for each in handed] == [["reload_bad:Good"]]


def test_secrets_of_options_come_out_of_references(folder: Path) -> None:
    (folder / "reference_good.py").write_text(GOOD)
    text = (
        "upstreams: {up: {base_url: http://127.0.0.1:9/v1}}\n"
        "models: {m: {routes: [{upstream: up}]}}\n"
        "plugins: [{use: 'reference_good:Good', options: {level: '${LEVEL}'}}]\n"
    )
    resolved = resolve(text, {"LEVEL": SECRET})
    assert load("reference_good:Good", {"level": SECRET}).plugin.level == SECRET  # type: ignore[attr-defined]
    assert ("plugins", 0, "options", "level") in resolved.referenced


def test_the_interface_imports_nothing_of_the_gateway() -> None:
    package = "gateway.wings.plugins"
    found = [
        name
        for module in (package, f"{package}.interface")
        for _, name in imported(module, MODULES[module], set(MODULES), PACKAGES)
    ]
    assert {*found} == {f"{package}.interface"}


def test_a_fault_is_no_error_of_the_log(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        faults(["nowhere_at_all:X"], folder)
    assert caplog.text == ""
