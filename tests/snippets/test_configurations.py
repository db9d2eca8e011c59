"""Every configuration in the README and the docs is a good one, also those that show only a part of the file."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import build, resolve
from gateway.wings.litellm.run import convert

from .pages import Snippet, snippets

OTHERS = {"docs/clients/continue.md": "apiBase", "docs/from-litellm.md": "model_list"}
"""Pages with files of other programs, and what shows that a block is one."""


def is_of_another_program(snippet: Snippet) -> bool:
    return OTHERS.get(snippet.page, "\0") in snippet.text


def completed(part: dict[str, Any]) -> dict[str, Any]:
    """A part of a configuration, with the upstreams and models that it names or that every file needs."""
    upstreams, models = dict(part.get("upstreams", {})), dict(part.get("models", {}))
    for model in models.values():
        for route in model.get("routes", ()):
            upstreams.setdefault(route["upstream"], {"base_url": f"https://{route['upstream']}.example/v1"})
    upstreams = upstreams or {"openai": {"base_url": "https://openai.example/v1"}}
    for name, upstream in upstreams.items():
        upstreams[name] = {"base_url": f"https://{name}.example/v1", **upstream}
    any_model = {
        "routes": [{"upstream": next(iter(upstreams))}],
        "max_output_tokens": 4096,
        "price": {"input": 1, "output": 1},
    }
    if not models or any("fallbacks" in model for model in models.values()):
        models["*"] = any_model
    teams = {key["team"]: {} for key in part.get("keys", ()) if "team" in key}
    roles = [*part.get("oidc", {}).get("roles", ()), *part.get("admin", {}).get("tokens", {}).values()]
    teams |= {role["team"]: {} for role in roles if "team" in role}
    return {**part, "upstreams": upstreams, "models": models, "teams": {**teams, **part.get("teams", {})}}


@pytest.mark.parametrize("snippet", [each for each in snippets("yaml") if not is_of_another_program(each)], ids=repr)
def test_a_configuration_is_good(snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (plugin,) = [each.text for each in snippets("python") if "class OurGuard" in each.text]
    (tmp_path / "our_guard.py").write_text(plugin)
    monkeypatch.syspath_prepend(tmp_path)
    names = re.findall(r"\$\{([A-Z_0-9]+)\}", snippet.text)
    secrets = {name: f"{number:032x}" for number, name in enumerate(names)}
    secrets |= {name: f"https://{secrets[name]}.example" for name in names if name.endswith("WEBHOOK")}
    secrets |= {name: f"whsec_{'bm90LXJlYWQh' * 3}" for name in names if name.startswith("HOOK_")}
    part = yaml.safe_load(snippet.text)
    for number, key in enumerate(part.get("keys", ())):
        if key.get("sha256") == "...":
            key["sha256"] = f"{number:064x}"
    build(resolve(yaml.safe_dump(completed(part)), secrets, lambda path: f"{path:a<32}").values)


def test_the_litellm_file_is_converted_to_the_upstreams_of_the_file_beside_it() -> None:
    theirs, ours = [each for each in snippets("yaml") if each.page == "docs/from-litellm.md"]
    converted = convert(theirs.text, theirs.page, datetime.now(UTC)).values
    shown = yaml.safe_load(ours.text)
    assert {each["base_url"] for each in converted["upstreams"].values()} == {
        each["base_url"] for each in shown["upstreams"].values()
    }
    assert converted["models"]["gpt-4o-mini"]["price"] == shown["models"]["gpt-4o-mini"]["price"]
