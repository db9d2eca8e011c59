"""What of two configurations differs, in words that may be logged."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from gateway.config import Config, build
from gateway.config.diff import MAX_SHOWN, changes

HIDDEN = "a-value-that-nobody-may-see"

PLAIN: dict[str, Any] = {
    "upstreams": {
        "openai": {"base_url": "https://api.example.com/v1", "api_key": "old-upstream-key", "headers": {"X-Org": "one"}}
    },
    "models": {
        "gpt-4o": {
            "routes": [{"upstream": "openai"}], "max_output_tokens": 100, "price": {"input": 0.15, "output": 1.5},
        },
        "b": {"routes": [{"upstream": "openai"}], "max_output_tokens": 100},
    },
    "keys": [
        {"id": "ci-bot", "secret": "s" * 30, "quotas": [{"requests": 10, "per": "day"}]},
        {"id": "zoe", "secret": "z" * 30},
    ],
}  # fmt: skip

Edit = Callable[[dict[str, Any]], object]


def edited(edit: Edit) -> Config:
    values = copy.deepcopy(PLAIN)
    edit(values)
    return build(values)


def lines(edit: Edit) -> list[str]:
    return [str(change) for change in changes(build(PLAIN), edited(edit))]


TABLE: list[tuple[str, Edit, list[str]]] = [
    ("nothing", lambda v: v["models"]["gpt-4o"]["price"].update(output=1.50, cached_input=None), []),
    ("a default", lambda v: v.update(server={"workers": 1}), []),
    (
        "a number",
        lambda v: v["models"]["gpt-4o"]["price"].update(input=0.2),
        ['models."gpt-4o".price.input: 0.15 -> 0.2'],
    ),
    (
        "a time",
        lambda v: v.update(server={"drain_delay_s": 2.5, "drain_timeout_s": 60.0}),
        ["server.drain_delay_s: 5 -> 2.5", "server.drain_timeout_s: 120 -> 60"],
    ),
    (
        "a word and a switch",
        lambda v: v["upstreams"]["openai"].update(on_disconnect="drain", capabilities={"echo": False}),
        ['upstreams.openai.on_disconnect: "cancel" -> "drain"', "upstreams.openai.capabilities.echo: true -> false"],
    ),
    ("a section is new", lambda v: v["models"]["b"].update(price={"input": 1, "output": 1}), ["models.b.price: added"]),
    ("a section is gone", lambda v: v["models"]["gpt-4o"].pop("price"), ['models."gpt-4o".price: removed']),
    ("a name is gone", lambda v: v["models"].pop("b"), ["models.b: removed"]),
    (
        "a name is new, and holds what a name may not",
        lambda v: v["models"].update({'x."\u00e9': {"routes": [{"upstream": "openai"}], "max_output_tokens": 1}}),
        ['models."x.\\"\\u00e9": added'],
    ),
    ("keys in another order", lambda v: v["keys"].reverse(), []),
    (
        "a key is gone, another is new",
        lambda v: v["keys"].__setitem__(0, {"id": "new", "secret": "n" * 30}),
        ['keys."ci-bot": removed', "keys.new: added"],
    ),
    (
        "a key behind one that is gone",
        lambda v: (v["keys"].pop(0), v["keys"][0].update(models=["gpt-*"])),
        ['keys."ci-bot": removed', 'keys.zoe.models: ["*"] -> ["gpt-*"]'],
    ),
    (
        "quotas",
        lambda v: v["keys"][0].update(quotas=[{"requests": 5, "per": "day"}, {"requests": 5, "per": "hour"}]),
        ['keys."ci-bot".quotas[0].requests: 10 -> 5', 'keys."ci-bot".quotas[1]: added'],
    ),
    (
        "an expiry and networks",
        lambda v: v["keys"][1].update(expires="2027-01-01T00:00:00Z", ips=["10.0.0.0/8"]),
        ['keys.zoe.expires: null -> "2027-01-01T00:00:00+00:00"', 'keys.zoe.ips: [] -> ["10.0.0.0/8"]'],
    ),
    (
        "a route",
        lambda v: v["models"]["b"].update(routes=[{"upstream": "openai", "model": "c"}]),
        ['models.b.routes[0].model: null -> "c"'],
    ),
]


@pytest.mark.parametrize(("edit", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_each_change_is_one_line(edit: Edit, expected: list[str]) -> None:
    assert lines(edit) == expected


SECRETS: list[tuple[str, Edit]] = [
    ("upstreams.openai.api_key", lambda v: v["upstreams"]["openai"].update(api_key=HIDDEN)),
    (
        "upstreams.openai.api_keys",
        lambda v: (v["upstreams"]["openai"].pop("api_key"), v["upstreams"]["openai"].update(api_keys=[HIDDEN, "b"])),
    ),
    ('upstreams.openai.headers."X-Org"', lambda v: v["upstreams"]["openai"]["headers"].update({"X-Org": HIDDEN})),
    ("upstreams.openai.proxy", lambda v: v["upstreams"]["openai"].update(proxy=f"http://user:{HIDDEN}@proxy:3128")),
    ("keys.zoe.secret", lambda v: v["keys"][1].update(secret=HIDDEN)),
    ("keys.zoe.sha256", lambda v: (v["keys"][1].pop("secret"), v["keys"][1].update(sha256="ab" * 32))),
    ("admin.token", lambda v: v.update(admin={"token": HIDDEN})),
    ("metrics.token", lambda v: v.update(metrics={"token": HIDDEN})),
    ("store.url", lambda v: v.update(store={"url": f"redis://user:{HIDDEN}@redis:6379/0"})),
]


@pytest.mark.parametrize(("path", "edit"), SECRETS, ids=[row[0] for row in SECRETS])
def test_a_secret_is_never_shown(path: str, edit: Edit) -> None:
    shows_no_secret(path, edit)


def shows_no_secret(path: str, edit: Edit) -> None:
    """Neither the old one nor the new one: both ways round."""
    both = (build(PLAIN), edited(edit))
    for old, new in (both, both[::-1]):
        received = [str(change) for change in changes(old, new)]
        assert f"{path}: (secret) changed" in received
        assert HIDDEN not in "".join(received)
        assert "ab" * 32 not in "".join(received)


def test_what_came_out_of_a_reference_is_never_shown_in_either_file() -> None:
    old, new = build(PLAIN), edited(lambda v: (v["keys"].reverse(), v["keys"][1].update(models=["secret-model"])))
    assert [str(each) for each in changes(old, new)] == ['keys."ci-bot".models: ["*"] -> ["secret-model"]']
    hidden = ['keys."ci-bot".models: (secret) changed']
    assert [str(each) for each in changes(old, new, [("keys", 0, "models", 0)], [])] == hidden
    assert [str(each) for each in changes(old, new, [], [("keys", 1, "models", 0)])] == hidden
    # The places are those of each file: in the new one that of another key.
    assert [str(each) for each in changes(old, new, [], [("keys", 0, "models", 0)])] != hidden


def test_a_long_value_is_cut() -> None:
    (line,) = lines(lambda v: v["keys"][1].update(models=[f"model-{number}" for number in range(100)]))
    assert line.endswith("...")
    assert len(line) < MAX_SHOWN + 50


def test_what_needs_a_restart_is_known_by_its_place() -> None:
    def edit(v: dict[str, Any]) -> None:
        v["server"] = {"host": "0.0.0.0", "port": 1, "workers": 2, "access_log": "off"}
        v["store"] = {"namespace": "other", "journal_dir": "./elsewhere", "outage_share": 0.5}

    found = changes(build(PLAIN), edited(edit))
    assert {change.path: change.needs_restart for change in found} == {
        "server.host": True, "server.port": True, "server.workers": True, "server.access_log": False,
        "store.namespace": True, "store.journal_dir": True, "store.outage_share": True,
    }  # fmt: skip
