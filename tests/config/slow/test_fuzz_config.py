"""Fuzzed configurations: every input gives a `Config` or a list of faults that show no secret.

Inputs: valid files with mutations (values of another type, missing settings, stray bytes of YAML), garbage, and
unusual files that a user may give to `gateway check` by mistake or on purpose.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given
from hypothesis import settings as rules
from hypothesis import strategies as st
from pydantic import BaseModel

from gateway.config import Config, ConfigError, ConfigFault, build, resolve, sections
from gateway.config.wings import whole_file

ROOT = Path(__file__).parent.parent.parent.parent
HIDDEN = "hush-0123456789-abcdef-hush"
"""The value of every secret; no output may contain it."""
STRAY = f"lost{HIDDEN[4:-4]}lost"
"""No fault may show the secret as a value, in any form. A name (key of a mapping) that contains it is no secret."""
ENV = {"SECRET": HIDDEN, "STRAY": STRAY, "EMPTY": "", "PROXY": f"http://u:{HIDDEN}@proxy:3128"}
BOUNDED = rules(deadline=None, max_examples=250, suppress_health_check=list(HealthCheck))

GOOD: dict[str, Any] = {
    "server": {"host": "127.0.0.1", "port": 0, "workers": 2, "trusted_proxies": ["10.0.0.0/8"], "access_log": "text",
               "public_url": "https://gateway.example.org", "reload_on_change": False},
    "store": {"url": f"redis://user:{HIDDEN}@127.0.0.1:6379/0", "namespace": "ours", "on_outage": "allow"},
    "admin": {"token": HIDDEN},
    "metrics": {"token": "${SECRET}", "max_keys": 5},
    "upstreams": {
        "up": {
            "base_url": "https://api.example.com/v1", "api_keys": [HIDDEN, f"{HIDDEN}-2"],
            "headers": {"X-Ours": HIDDEN}, "proxy": f"http://user:{HIDDEN}@proxy:3128",
            "timeouts": {"connect_s": 1.5}, "capabilities": {"completions": "via_chat"},
            "limits": {"parallel": 5, "reserved": 1, "adaptive": True, "per_model": {"m*": {"tokens": "1M/min"}}},
        },
        "other": {
            "base_url": "http://127.0.0.1:9/v1", "api_key": "${SECRET:-none}", "proxy": "${PROXY}",
            "key_header": "api-key", "capabilities": {"generate_content": True, "realtime": True},
        },
    },
    "models": {
        "m": {
            "endpoints": ["completions", "chat"], "routes": [{"upstream": "up", "priority": 1}, {"upstream": "other"}],
            "max_output_tokens": 100, "min_output_tokens": 10, "store_responses": False, "max_wait_s": "5s",
            "hedge_after": "p95",
            "sticky": {"by": ["header", "prefix"], "header": "X-Chat", "prefix_bytes": 512},
            "limits": {"max_tokens": 50, "deny": ["n"]},
            "price": {"input": "0.5", "output": 2, "cached_input": 0.1},
        },
        "*": {"routes": [{"upstream": "up", "model": "their-m"}], "max_output_tokens": 9},
    },
    "aliases": {"fast": "m"},
    "passthrough": {
        "tasks": {
            "upstream": "up", "prefix": "/p", "upstream_prefix": "", "submit": ["POST /v1/{kind}"],
            "read": ["GET /v1/{kind}?id={task}"], "headers": ["Prefer"], "model": "/model", "default_model": "a",
            "refers": ["/old"], "accepted": {"/code": [0, 1]}, "task": "/id", "done": {"/done": True},
            "failed": {"/error": "?*"}, "also": ["/file"], "links": ["/a/*/url"],
            "charged": {"/code": "SAFETY*"}, "made": ["/data/*/url"],
            "key_in": ["x-key", "?key", "Authorization: Token"],
            "error": {"code": "{status}", "texts": ["{message}", 5, None]},
            "lists": ["GET /v1/{kind}"], "callbacks": True, "unpriced": "allow",
            "prices": [{"when": {"kind": ["a", "b*"]}, "second": "0.1", "count": ["/seconds", "kind"], "default": 5,
                        "outputs": "/n"}],
        },
    },
    "defaults": {
        "models": {"max_attempts": 2, "price": {"input": 1, "output": 2}},
        "keys": {"models": ["m*"], "expires_after_s": 60, "quotas": [{"requests": 1, "per": "day"}]},
    },
    "quotas": [{"requests": 5, "per": "second"}],
    "records": {"user": False, "tags": False},
    "people": {"defaults": {"quotas": [{"requests": 9, "per": "day"}], "max_parallel": 2}},
    "teams": {
        "crew": {
            "quotas": [{"usd": 5, "per": "month"}],
            "members": {"max_keys": 2, "models": ["m*"], "by_key": ["pause"]},
        }
    },
    "keys": [
        {
            "id": "a", "secret": HIDDEN, "team": "crew", "models": ["m*"], "expires": "2027-01-01T00:00:00Z",
            "ips": ["::1/128"], "max_parallel": 2, "quotas": [{"tokens": 9, "per": 90, "model": "m"}],
        },
        {"id": "b", "sha256": "0" * 64, "on_exceeded": "shadow"},
    ],
    "oidc": {
        "issuer": "https://login.example.org", "client_id": "gateway", "client_secret": HIDDEN,
        "redirect_url": "https://gateway.example.org/admin/sign-in/callback", "session_key": f"{HIDDEN}{'x' * 32}",
        "domains": ["example.org"],
    },
    "jwt": {
        "issuer": "https://login.example.org", "audiences": ["gateway"], "jwks_url": "https://login.example.org/keys",
    },
    "queue": {"max_wait_s": 5, "by": "team"},
    "uploads": {
        "max_bytes": 1000, "max_file_bytes": "1MiB", "memory_bytes": 10, "max_stored_bytes": 5000, "timeout_s": 5,
        "folder": ".",
    },
    "files": {"upstream": "up", "max_per_key": 5},
    "prices": {"file": "prices.json"},
    "leavers": {"inactive_after": "30d", "warn_before": "7d", "by_groups": True, "exempt": ["ci-*"]},
    "scim": {"token": HIDDEN + "-of-the-provider", "previous_token": HIDDEN + "-before", "person": "email"},
    "alerts": {"webhook": f"https://hooks.example.com/{HIDDEN}", "proxy": f"http://user:{HIDDEN}@proxy:3128"},
    "when_above": {"at_run_time": True, "keys": {"defaults": [{"share": "80%", "use": "m"}]}},
    "parameters": {
        "models": {"fast": {"set": {"n": 1}, "default": {"seed": 2}, "remove": ["user"], "headers": {"x-a": HIDDEN}}},
    },
    "hooks": {
        "before_call": {"guard": {"url": f"https://hooks.example.com/{HIDDEN}", "sees": "body", "timeout_ms": 50}},
        "after_call": {"log": {"url": "https://hooks.example.com/log", "teams": ["crew"], "answers_of": ["a*"]}},
    },
    "content": {
        "otlp": {"endpoint": "http://127.0.0.1:4318", "headers": {"Authorization": HIDDEN}},
        "files": {"folder": ".", "keep_days": 3}, "keep": [{"keys": ["a*"], "share": 0.5}], "never": ["b"],
        "redact": {"paths": ["input.*.parts.tool_call"], "patterns": ["[0-9]{4}"]},
    },
    "plugins": [{"use": "tests.wings.plugins.samples:Probe", "options": {"mark": HIDDEN}}],
    "billing": {"upstreams": {"up": {"provider": "openai", "api_key": HIDDEN, "key_ids": ["key_1"]}}, "every": "2h"},
    "tracing": {"endpoint": "http://127.0.0.1:4318", "sample_ratio": 0.5, "headers": {"Authorization": HIDDEN}},
}  # fmt: skip

Place = tuple[str | int, ...]


def places(values: Any, at: Place = ()) -> Iterator[Place]:
    """Paths of values that can be replaced or removed."""
    for name, value in values.items() if isinstance(values, dict) else enumerate(values):
        yield (*at, name)
        if isinstance(value, dict | list):
            yield from places(value, (*at, name))


def changed(values: Any, at: Place, change: Any) -> Any:
    """A copy with another value at this path; unchanged where the path does not exist."""
    found = values
    for name in at[:-1]:
        if not isinstance(found, dict | list) or (isinstance(found, list) and not isinstance(name, int)):
            return values
        try:
            found = found[name]
        except (KeyError, IndexError):
            return values
    name = at[-1]
    if isinstance(found, dict):
        if change is LEFT_OUT:
            found.pop(name, None)
        else:
            found[str(name)] = change
    elif isinstance(found, list) and isinstance(name, int) and name < len(found):
        found[name : name + 1] = [] if change is LEFT_OUT else [change]
    return values


LEFT_OUT = object()
SETTINGS = sorted(
    {
        name
        for section in vars(sections).values()
        if isinstance(section, type) and issubclass(section, BaseModel)
        for name in section.model_fields
    }
)
PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from([
        STRAY, f"{STRAY}\n", f"{STRAY} {STRAY}", f"\x00{STRAY}", f"{STRAY}\ud800", f"http://{STRAY}@/",
        f"[{STRAY}", f"redis://u:{STRAY}@h/1/2", f"redis://u:{STRAY}@@h", f"http://u:{STRAY}@[::1",
        f"embedded:{STRAY}\x00", f"socks5://u:{STRAY}@h:1", f"https://[{STRAY}]/", "${STRAY}", "${EMPTY}",
        "${NOT_SET}", "${STRAY:-x}", "${", "${file:/dev/null}", "${file:/nowhere/at/all}", "${file:/proc/self/mem}",
        "${file:\x00}", "${STRAY}${STRAY}",
        "nan", "inf", "1e400", "0x10", "1_0", "9" * 5000, "9" * 50, 10**400, -1, 2**53, 1e-300,
        "2027-01-01", "second", "*", "via_chat", "10.0.0.1/8", "::/0", "other", "up", "crew",
    ])
)  # fmt: skip
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(SETTINGS) | st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(list(places(GOOD))).flatmap(
            lambda at: st.just(at) | st.sampled_from(SETTINGS).map(lambda name: (*at, name))
        ),
        VALUES | st.just(LEFT_OUT),
    ),
    min_size=1,
    max_size=4,
)


def check(text: str | None, values: Any = None) -> Config | list[ConfigFault]:
    """Parses it; asserts that faults contain no secret."""
    try:
        config = build(values) if text is None else build(resolve(text, ENV).values)
    except ConfigError as error:
        faults = error.faults
    else:
        assert HIDDEN not in repr(config)
        return config
    assert faults
    for fault in faults:
        assert str(fault).isprintable(), fault
        # Paths consist of names, and in YAML a colon makes a name of any text.
        assert HIDDEN[5:15] not in (fault.message if text is not None else str(fault)), fault
        assert len(str(fault)) < 1000, fault
    return faults


def test_what_goes_wrong_here_begins_well() -> None:
    assert isinstance(check(yaml.safe_dump(GOOD)), Config)
    assert set(whole_file().model_fields) == set(GOOD)


@given(CHANGES)
@rules(BOUNDED)
def test_any_value_in_any_place(changes: list[tuple[Place, Any]]) -> None:
    values: Any = copy.deepcopy(GOOD)
    for at, change in changes:
        values = changed(values, at, copy.deepcopy(change))
    check(None, values)
    try:
        text = yaml.safe_dump(values, allow_unicode=True)
    except (yaml.YAMLError, UnicodeError, ValueError):
        return  # not expressible in YAML
    check(text)


@given(VALUES)
@example({"upstreams": {"u": {"base_url": 1}}, "models": []})
@example(
    {"server": [], "store": 1, "admin": "x", "keys": {}, "teams": [[]], "quotas": {"requests": 1}, "alerts": False}
)
@rules(BOUNDED, max_examples=200)
def test_garbage_from_the_beginning(values: Any) -> None:
    if isinstance(values, dict):
        check(None, values)
    text = json.dumps(values)
    check(text)


SPARKS = [
    "\t", " ", "\n", "\n  ", "*", "&", "!", "!!", "%", "@", "`", "|", ">", "{", "}", "[", "]", ",", ":", "-", "?", "#",
    "'", '"', "\\", "<<: ", "---\n", "...\n", "\0", "\x85", "\u2028", "\ufeff", "!!python/object:os.system ",
    "!!binary ", "!!timestamp ", "!!set ", "!!omap ", "&a ", "*a ", "!a!b ", "!<a> ", "%TAG !a! x\n", "0o7", "1:30:00",
    "=", "~", "yes",
]  # fmt: skip
TEXT = yaml.safe_dump(GOOD)


@given(
    st.lists(
        st.tuples(
            st.integers(0, len(TEXT)),
            st.sampled_from([0, 0, 0, 1, 2, 9]),
            st.sampled_from(SPARKS) | st.text(max_size=3),
        ),
        min_size=1,
        max_size=3,
    )
)
@example([(0, 0, f"!{HIDDEN}!x ")])
@example([(TEXT.index("\n"), 0, f"\n!{HIDDEN}!x ")])
@example([(0, 0, f"%TAG ! {HIDDEN}\n")])
@example([(0, 0, "!!timestamp ")])
@example([(0, 0, "!!bool ")])
@example([(0, 0, f"!<{HIDDEN}> ")])
@example([(0, 0, f"a: *{HIDDEN}\n")])
@example([(0, 0, f'a: "\\{HIDDEN}"\n')])
@example([(0, 0, f"%TAG !{HIDDEN}! x\n%TAG !{HIDDEN}! x\n---\n")])
@example([(0, 0, f"- &{HIDDEN} a\n- &{HIDDEN} b\n- *{HIDDEN}\n")])
@rules(BOUNDED)
def test_any_text(changes: list[tuple[int, int, str]]) -> None:
    text = TEXT
    for at, length, spark in changes:
        text = text[:at] + spark + text[at + length :]
    check(text)


# --------------------------------------------------------------------------------------------------- the whole command

NAMED = "upstreams: {up: {base_url: 'http://127.0.0.1:9/v1', api_key: %s}}\nmodels: {m: {routes: [{upstream: up}]}}\n"
SMALL = NAMED % HIDDEN
TEN = range(1, 10)


def laughs(first: str, one: str) -> str:
    """Nested YAML aliases: a few lines expand to a billion values."""
    lines = [one.format(name=f"a{place}", ten=", ".join([f"{first}*a{place - 1}"] * 10)) for place in TEN]
    return SMALL + "a0: &a0 {x: lol}\n" + "".join(lines)


MERGED = "merged into more than" if yaml.__version__ in ("6.0.2", "6.0.3") else "a9: there is no such setting"
"""From PyYAML 6.0.4 on a value that is merged over several ways counts once, so that merges cannot grow."""

ODD: dict[str, tuple[bytes, str]] = {
    "binary": (bytes(range(256)) * 9 + HIDDEN.encode(), "not UTF-8 text"),
    "an executable": (Path(sys.executable).read_bytes()[:100_000], "not UTF-8 text"),
    "UTF-16": (SMALL.encode("utf-16"), "not UTF-8 text"),
    "UTF-16 without a mark": (SMALL.encode("utf-16-be"), "not valid YAML"),
    "nothing": (b"", "expected settings"),
    "10 MB of a comment": (SMALL.encode() + b"# x\n" * 2_600_000, "longer than"),
    "10 MB of a list": (SMALL.encode() + b"keys: [" + b"a, " * 3_500_000 + b"]", "longer than"),
    "deep": (b"a: " + b"[" * 50_000, "not valid YAML"),
    "deep and closed": (b"a: " + b"[" * 5_000 + b"]" * 5_000, "not valid YAML"),
    "deep by aliases": (
        b"a0: &a0 [lol]\n" + b"".join(b"a%d: &a%d [*a%d]\n" % (n, n, n - 1) for n in range(1, 1500)), "100 levels",
    ),
    "a billion laughs": (laughs("", "{name}: &{name} [{ten}]\n").encode(), "500000 values"),
    "a billion merged": (laughs("", "{name}: &{name}\n  <<: [{ten}]\n  {name}: 1\n").encode(), MERGED),
    "contains itself": (b"a: &a [*a]\n", "recursive"),
    "names twice": (SMALL.encode() + SMALL.encode(), "is given twice"),
    "tabs": (SMALL.encode() + b"keys:\n\t- id: a\n", "cannot start any token"),
    "two documents": (f"{SMALL}---\n{SMALL}".encode(), "another document"),
    "a Python object": (b"a: !!python/object/apply:os.system ['touch owned']\n", "in quotes"),
    "a secret as a tag": ((NAMED % f"!{HIDDEN}!x y").encode(), "in quotes"),
    "a secret as an alias": ((NAMED % f"*{HIDDEN}").encode(), "in quotes"),
    "a huge number": (b"a: " + b"9" * 100_000, "not valid YAML"),
    "names that are lists": (b"? [a, b]\n: 1\n", "unhashable"),
}  # fmt: skip


def gateway_check(folder: Path, content: bytes) -> subprocess.CompletedProcess[str]:
    """Runs `gateway check` with a memory limit."""
    (folder / "odd.yaml").write_bytes(content)
    return subprocess.run(
        ["sh", "-c", 'ulimit -v 4000000; exec "$0" -m gateway check --config odd.yaml', sys.executable],
        capture_output=True, text=True, cwd=folder, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.mark.parametrize(("content", "says"), ODD.values(), ids=list(ODD))
def test_odd_file_is_a_fault_in_plain_words(tmp_path: Path, content: bytes, says: str) -> None:
    done = gateway_check(tmp_path, content)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 3000
    assert HIDDEN[5:15] not in done.stderr
    assert not (tmp_path / "owned").exists()


ALIKE = f"keys:\n- &k {{id: a, sha256: '{'0' * 64}'}}\n- {{<<: *k, id: b, sha256: '{'1' * 64}'}}\n"


@pytest.mark.parametrize("content", ["\ufeff" + SMALL, SMALL + ALIKE], ids=["byte order mark", "anchors and merges"])
def test_unusual_file_is_good(tmp_path: Path, content: str) -> None:
    done = gateway_check(tmp_path, content.encode())
    assert (done.returncode, done.stderr) == (0, "")
    assert HIDDEN not in done.stdout
