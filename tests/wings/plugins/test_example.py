"""The example in examples/plugin: its own tests, and the plug-in in a gateway."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from gateway.wings.plugins.loading import load

from .test_calls import Starts, start

__all__ = ["start"]

FOLDER = Path(__file__).parents[3] / "examples" / "plugin"
TESTS = FOLDER / "tests" / "test_marker_guard.py"
NAMES = [line.removeprefix("def ").partition("(")[0] for line in TESTS.read_text().splitlines() if "def test_" in line]


@pytest.fixture(autouse=True)
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The example as if it were installed."""
    monkeypatch.syspath_prepend(FOLDER)
    yield import_module("marker_guard")
    sys.modules.pop("marker_guard")


@pytest.mark.parametrize("name", NAMES)
def test_of_the_example_itself(name: str) -> None:
    spec = spec_from_file_location("tests_of_the_example", TESTS)
    assert spec is not None
    assert spec.loader is not None
    tests = module_from_spec(spec)
    spec.loader.exec_module(tests)
    getattr(tests, name)()


async def test_in_a_gateway_as_its_readme_says(start: Starts) -> None:
    text = (FOLDER / "README.md").read_text()
    (entry,) = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])["plugins"]
    gateway = await start(entry)
    marked = [{"role": "user", "content": "this is TOP SECRET"}]
    for is_stream in (False, True):
        assert (await gateway.call("chat", is_stream=is_stream)).status == 200
        assert gateway.upstream.requests[0].headers["x-team"] == "red"
        refused = await gateway.post("/v1/chat/completions", {"messages": marked, "stream": is_stream})
        long = [{"role": "user", "content": "long " * 20_000}, *marked]
        of_long = await gateway.post("/v1/chat/completions", {"messages": long, "stream": is_stream})
        assert (refused.status, refused.json["error"]["code"], of_long.status) == (422, "marked_prompt", 422)
        assert gateway.upstream.hits == 1
    loaded = load(entry["use"], entry["options"])
    assert f"  plug-ins   {loaded}\n" in text
    assert loaded.plugin.events == {"red": 4}
