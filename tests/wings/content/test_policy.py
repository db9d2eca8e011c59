"""Which calls are kept, and what is left out of them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import ConfigError, build, resolve
from gateway.config.probable_mistakes import warnings_of
from gateway.wings.content import policy
from gateway.wings.content.check import describe
from gateway.wings.content.redaction import Redactor
from gateway.wings.content.settings import ContentSettings
from tests.test_floors import complaints_of, impure

FILES = {"folder": "/kept"}


def settings(**content: Any) -> ContentSettings:
    return ContentSettings.model_validate({"files": FILES, **content})


def test_the_highest_share_of_the_entries_counts() -> None:
    made = settings(keep=[{"keys": ["a*"], "share": 0.1}, {"teams": ["red"], "models": ["gpt-*"], "share": 0.5}])
    assert policy.share_of(made, "ann", "red", "gpt-5") == 0.5
    assert policy.share_of(made, "ann", "red", "other") == 0.1
    assert policy.share_of(made, "bob", None, "gpt-5") == 0.0
    assert policy.of_key(made, "bob", "blue") is None
    assert policy.of_key(made, "bob", "red") == {
        "key": "bob", "to": ["files of the gateway, for 30 days"], "calls": [{"models": ["gpt-*"], "share": 0.5}],
    }  # fmt: skip


def test_never_wins_over_all() -> None:
    made = settings(keep=[{"keys": ["ann"]}, {}], never=["an?"])
    assert (policy.share_of(made, "ann", "red", "m"), policy.of_key(made, "ann", "red")) == (0.0, None)
    assert policy.share_of(made, "bob", "red", "m") == 1.0


def test_a_call_of_a_share_is_one_of_a_higher_share_too() -> None:
    calls = [f"req_{number}" for number in range(2000)]
    some, more = ([call for call in calls if policy.is_kept(call, share)] for share in (0.1, 0.3))
    assert (set(some) < set(more), 120 < len(some) < 280, 480 < len(more) < 720) == (True, True, True)
    assert all(policy.is_kept(call, 1.0) for call in calls)
    assert not any(policy.is_kept(call, 0.0) for call in calls)


@pytest.mark.parametrize(
    ("path", "output"),
    [
        ("output", [{"role": "assistant", "parts": [{"type": "text", "content": "[redacted]"}] * 2}]),
        ("output.assistant.parts.tool_call.arguments.to",
         [{"role": "assistant", "parts": [
             {"type": "text", "content": "a"}, {"type": "tool_call", "arguments": {"to": "[redacted]", "n": [1]}}]}]),
        ("output.*.parts.text",
         [{"role": "assistant", "parts": [
             {"type": "text", "content": "[redacted]"}, {"type": "tool_call", "arguments": {"to": "b", "n": [1]}}]}]),
        ("output.user", None),
        ("input", None),
    ],
)  # fmt: skip
def test_what_is_at_a_path_is_left_out(path: str, output: Any) -> None:
    tool = {"type": "tool_call", "arguments": {"to": "b", "n": [1]}}
    given = {"output": [{"role": "assistant", "parts": [{"type": "text", "content": "a"}, tool]}]}
    assert Redactor([path], [])(given) == (given if output is None else {"output": output})


def test_what_a_pattern_matches_is_left_out_everywhere() -> None:
    numbers = {"card": 4111111111111111, "all": [1, 2.5, True, 4111111111111111]}
    assert Redactor([], [r"\b\d{16}\b"])({"input": numbers})["input"] == {
        "card": "[redacted]", "all": [1, 2.5, True, "[redacted]"]
    }  # fmt: skip
    given = {"input": [{"parts": [{"arguments": {"ann@x.org": ["to ann@x.org", 1, None]}}]}]}
    assert Redactor([], [r"\w+@[\w.]+"])(given) == {
        "input": [{"parts": [{"arguments": {"[redacted]": ["to [redacted]", 1, None]}}]}]
    }


def test_a_file_in_a_text_is_left_out() -> None:
    data = "data:application/pdf;base64,JVBERi0xLjQK"
    assert Redactor([], [])({"a": [data, "A" * 3000, "word " * 3000]}) == {
        "a": [f"[left out: a file of {len(data)} characters]", "[left out: a file of 3000 characters]", "word " * 3000]
    }


def test_what_is_exported_is_decided_by_pure_modules() -> None:
    modules = ("policy", "messages", "digest", "redaction", "otlp")
    assert complaints_of(impure, [f"gateway.wings.content.{name}" for name in modules]) == ""


WHOLE: dict[str, Any] = {
    "upstreams": {"up": {"base_url": "https://api.openai.com/v1", "api_key": "sk-1"}},
    "models": {"m": {"routes": [{"upstream": "up"}], "max_output_tokens": 9}},
    "keys": [{"id": "k", "secret": "sk-gw-k-0123456789abcdef"}],
}


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"keep": [{}]}, "content: keep needs a place: set otlp or files"),
        ({"files": FILES, "keep": [{"share": 0}]}, "content.keep[0].share"),
        ({"files": FILES, "keep": [{"keys": []}]}, "content.keep[0].keys"),
        ({"files": {"folder": "~/kept"}}, "~ is no folder here"),
        ({"files": {"folder": "/kept", "keep_days": "36h"}}, "expected a number of days such as 30"),
        ({"otlp": {"endpoint": "localhost:4318"}}, "expected an address like http://localhost:4318"),
        ({"redact": {"patterns": ["("]}}, "is no regular expression"),
        ({"redact": {"patterns": ["x*"]}}, "matches an empty text"),
        ({"redact": {"paths": ["messages.0"]}}, "expected input, output or system"),
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(content: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build({**WHOLE, "content": content})
    assert fault in str(refused.value)


def test_otlp_needs_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.config.sections.server.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'completions-gateway\[otel\]'"):
        build({**WHOLE, "content": {"otlp": {"endpoint": "http://localhost:4318"}}})


def test_the_store_is_reached_through_the_proxy_of_the_environment() -> None:
    text = json.dumps({**WHOLE, "content": {"otlp": {"endpoint": "https://cloud.example.com"}}})
    otlp = build(resolve(text, {"https_proxy": "http://proxy:3128"}).values).section(ContentSettings).otlp
    assert otlp is not None
    assert (str(otlp.way), otlp.address) == ("proxy:3128", "https://cloud.example.com/v1/traces")


def test_the_example_of_the_page_is_a_good_one() -> None:
    page = (Path(__file__).parents[3] / "docs" / "content.md").read_text()
    example = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert example is not None
    made = build({**WHOLE, "teams": {"research": {}}, **yaml.safe_load(example[1])})
    assert not [each for each in warnings_of(made, datetime.now(UTC)) if each.path.startswith("content")]
    assert describe(made) == (
        "prompts and answers of some calls go to http://localhost:6006 and files of the gateway, for 14 days; never of "
        "hr-*, legal"
    )
    assert describe(build(WHOLE)) == "prompts and answers are not kept"


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ({"files": FILES}, "content.keep"),
        ({"otlp": {"endpoint": "http://localhost:4317"}, "keep": [{}]}, "content.otlp.endpoint"),
        ({"files": FILES, "keep": [{"teams": ["rde"]}]}, "content.keep[0].teams"),
        ({"files": FILES, "keep": [{}], "max_waiting_bytes": "1 MiB"}, "content.max_waiting_bytes"),
        ({"files": FILES, "keep": [{}]}, None),
        ({}, None),
    ],
)
def test_settings_that_do_nothing_are_named(content: dict[str, Any], place: str | None) -> None:
    made = build({**WHOLE, "content": content})
    found = [each.path for each in warnings_of(made, datetime.now(UTC)) if each.path.startswith("content")]
    assert found == ([] if place is None else [place])
