"""Which proxy leads to an upstream: the setting, the environment, and who is exempt. No network."""

from __future__ import annotations

import json
import re

import pytest

from gateway.config import ConfigError, ConfigFault, Proxy, Upstream, build, resolve
from gateway.config.proxies import is_exempt, proxy_for, read_proxy

# ------------------------------------------------------------------------------------------------------ the address


@pytest.mark.parametrize(
    ("text", "shown", "credentials"),
    [
        ("http://proxy:3128", "proxy:3128", None),
        ("HTTP://Proxy.Example.com:80/", "proxy.example.com:80", None),
        ("http://10.0.0.1:1", "10.0.0.1:1", None),
        ("http://[FD00::1]:3128", "[fd00::1]:3128", None),
        ("http://user:pw@proxy:3128", "proxy:3128", "user:pw"),
        ("http://user@proxy:3128", "proxy:3128", "user:"),
        ("http://:pw@proxy:3128", "proxy:3128", ":pw"),
        ("http://@proxy:3128", "proxy:3128", ":"),
        ("http://me%40corp:p%3A%2F%25@proxy:3128", "proxy:3128", "me@corp:p:/%"),
        ("http://u:p%C3%A4ss@proxy:3128", "proxy:3128", "u:päss"),
        ("http://u:päss@proxy:3128", "proxy:3128", "u:päss"),
        ("http://u:p@ss@proxy:3128", "proxy:3128", "u:p@ss"),  # the last @ counts
    ],
)
def test_address(text: str, shown: str, credentials: str | None) -> None:
    proxy = read_proxy(text)
    assert proxy is not None
    assert str(proxy) == shown
    assert (proxy.credentials and proxy.credentials.get_secret_value()) == credentials


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("https://secret@proxy:3128", "of another kind than http"),
        ("socks5://secret@proxy:1080", "of another kind than http"),
        ("proxy:3128", "expected http://host:port"),
        ("http://", "expected http://host:port"),
        ("http://secret@:3128", "expected http://host:port"),
        ("http://u:secret@proxy", "the port is missing"),
        ("http://u:secret@proxy:0", "the port is missing"),
        ("http://u:secret@proxy:99999", "expected http://host:port"),
        ("http://u:secret/x@proxy:3128", "/ ? # @ and % in a password"),
        ("http://u:secret#x@proxy:3128", "/ ? # @ and % in a password"),
        ("http://u:secret%FF@proxy:3128", "/ ? # @ and % in a password"),
        ("http://u%3A:secret@proxy:3128", "a user with a colon"),
        ("http://u:secret%0A@proxy:3128", "a control character"),
        ("http://u:secret\n@proxy:3128", "without spaces"),
        (" http://u:secret@proxy:3128", "without spaces"),
        ("http://u:secret\udcff@proxy:3128", "in UTF-8"),
        ("http://u:secret@proxy:3128/path", "expected http://host:port"),
        ("http://u:secret@proxy:3128?q", "expected http://host:port"),
        ("http://u:secret@pro|xy:3128", "expected http://host:port"),
        ("http://u:secret@[::1:3128", "expected http://host:port"),
        ("http://u:secret@[1.2.3.4]:3128", "expected http://host:port"),
    ],
)
def test_bad_address(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        read_proxy(text)
    assert "secret" not in str(caught.value)


def test_credentials_are_sent_in_utf_8() -> None:
    """The example of RFC 7617, section 2.1."""
    proxy = read_proxy("http://test:123%C2%A3@proxy:3128")
    assert proxy is not None
    assert proxy.basic is not None
    assert proxy.basic.get_secret_value() == "dGVzdDoxMjPCow=="


def test_no_credentials_in_any_repr() -> None:
    upstream = Upstream.model_validate({"base_url": "http://up/v1", "proxy": "http://hidden-u:hidden-p@proxy:3128"})
    proxy = upstream.way
    assert isinstance(proxy, Proxy)
    for shown in (repr(proxy), str(proxy), repr(upstream), repr(upstream.proxy), upstream.model_dump_json()):
        assert "hidden" not in shown
        assert (proxy.secrets[1]) not in shown
    assert set(proxy.secrets) == {"hidden-u:hidden-p", "aGlkZGVuLXU6aGlkZGVuLXA=", "hidden-p"}


# ---------------------------------------------------------------------------------------------------- who is exempt


@pytest.mark.parametrize(
    ("no_proxy", "yes", "no"),
    [
        ("", [], ["a.example", "10.0.0.1"]),
        ("*", ["a.example", "10.0.0.1", "::1", "localhost"], []),
        ("example.com", ["example.com", "api.example.com", "A.B.Example.COM", "api.example.com."],
         ["notexample.com", "example.com.evil", "example", "com"]),
        (".example.com", ["example.com", "api.example.com"], ["notexample.com"]),
        ("*.example.com", ["example.com", "api.example.com"], ["notexample.com"]),
        ("Example.COM.", ["example.com", "api.example.com"], []),
        ("a.example, b.example c.example,,", ["a.example", "b.example", "c.example"], ["d.example", "example"]),
        ("localhost", ["localhost", "LOCALHOST", "x.localhost"], ["127.0.0.1", "::1", "localhost.example"]),
        ("127.0.0.1", ["127.0.0.1"], ["127.0.0.10", "127.0.0.2", "localhost"]),
        ("0.0.1", [], ["127.0.0.1"]),  # an address is no name with labels
        ("10.0.0.0/8,192.168.1.7/24", ["10.255.0.1", "192.168.1.200"], ["11.0.0.1", "192.168.2.1", "fd00::1", "10.x"]),
        ("::1,[fd00::]/8", ["::1", "0:0:0:0:0:0:0:1"], ["::2", "127.0.0.1", "fd00::1"]),
        ("fd00::/8,[fe80::1]", ["fd00::1", "fe80::1"], ["fe80::2", "10.0.0.1"]),
        ("example.com:8443", [], ["example.com", "api.example.com"]),
        ("example.com:443", ["example.com", "api.example.com"], ["other.com"]),
        ("10.0.0.0/8:443,[::1]:443,*:80", ["10.0.0.1", "::1"], ["::2", "a.example"]),
    ],
)  # fmt: skip
def test_no_proxy(no_proxy: str, yes: list[str], no: list[str]) -> None:
    assert [host for host in yes + no if is_exempt(host, 443, no_proxy)] == yes


def test_nonsense_in_no_proxy_exempts_no_host() -> None:
    nonsense = [".", ":443", "10.0.0.0/99", "[x]", "[]:443", "[", "a:b:c", "%", "a:" + "9" * 5000, "*.", "*x", "/8"]
    for host in ("a.example", "a", "10.0.0.1", "::1"):
        assert not is_exempt(host, 443, ",".join(nonsense))


# --------------------------------------------------------------------------------------------------- the environment

HTTPS, HTTP = "https://api.example.com/v1", "http://api.example.com:8000/v1"
P = "http://proxy:3128"


@pytest.mark.parametrize(
    ("url", "env", "found"),
    [
        (HTTPS, {}, ("", "")),
        (HTTPS, {"HTTPS_PROXY": P}, ("HTTPS_PROXY", P)),
        (HTTPS, {"HTTPS_PROXY": "http://other:1", "https_proxy": P}, ("https_proxy", P)),
        (HTTPS, {"HTTPS_PROXY": P, "https_proxy": ""}, ("HTTPS_PROXY", P)),  # empty is none
        (HTTPS, {"HTTPS_PROXY": " "}, ("", "")),
        (HTTPS, {"HTTPS_PROXY": "proxy:3128"}, ("HTTPS_PROXY", P)),
        (HTTPS, {"HTTPS_PROXY": f" {P}\n"}, ("HTTPS_PROXY", P)),
        (HTTPS, {"http_proxy": P}, ("", "")),
        (HTTP, {"http_proxy": P}, ("http_proxy", P)),
        (HTTP, {"HTTP_PROXY": P}, ("", "")),  # a client's `Proxy:` header, where a CGI server made the environment
        (HTTP, {"HTTPS_PROXY": P, "https_proxy": P}, ("", "")),
        (HTTP, {"ALL_PROXY": P}, ("ALL_PROXY", P)),
        (HTTPS, {"ALL_PROXY": "http://other:1", "all_proxy": P}, ("all_proxy", P)),
        (HTTPS, {"all_proxy": "socks5://other:1", "HTTPS_PROXY": P}, ("HTTPS_PROXY", P)),
        (HTTPS, {"HTTPS_PROXY": P, "NO_PROXY": "example.com"}, ("", "")),
        (HTTPS, {"ALL_PROXY": P, "NO_PROXY": "*"}, ("", "")),
        (HTTPS, {"HTTPS_PROXY": P, "NO_PROXY": "*", "no_proxy": "other.example"}, ("HTTPS_PROXY", P)),
        (HTTPS, {"HTTPS_PROXY": P, "NO_PROXY": "*", "no_proxy": ""}, ("", "")),
        (HTTPS, {"HTTPS_PROXY": P, "NO_PROXY": "example.com:443"}, ("", "")),
        (HTTP, {"http_proxy": P, "NO_PROXY": "example.com:80"}, ("http_proxy", P)),
        (HTTP, {"http_proxy": P, "NO_PROXY": "example.com:8000"}, ("", "")),
        ("https://127.0.0.1/v1", {"HTTPS_PROXY": P}, ("HTTPS_PROXY", P)),
        ("https://[::1]:8443/v1", {"HTTPS_PROXY": P, "NO_PROXY": "[::1]:8443"}, ("", "")),
        ("ftp://api.example.com", {"ALL_PROXY": P}, ("", "")),
        ("https://[::1", {"ALL_PROXY": P}, ("", "")),
        ("https://a:b", {"ALL_PROXY": P}, ("", "")),
        ("None", {"ALL_PROXY": P}, ("", "")),
    ],
)  # fmt: skip
def test_proxy_for(url: str, env: dict[str, str], found: tuple[str, str]) -> None:
    assert proxy_for(url, env) == found


FILE = """
upstreams:
  absent: {base_url: "https://a.example/v1"}
  null_is_absent: {base_url: "https://b.example/v1", proxy: null}
  own: {base_url: "https://c.example/v1", proxy: "http://own:1"}
  direct: {base_url: "https://d.example/v1", proxy: ""}
  asked: {base_url: "https://e.example/v1", proxy: "${MY_PROXY:-}"}
  exempt: {base_url: "https://f.example/v1"}
models:
  m: {routes: [{upstream: own}], max_output_tokens: 100}
"""


def test_the_environment_is_the_default() -> None:
    values = resolve(FILE, {"HTTPS_PROXY": "http://u:pw@proxy:3128", "NO_PROXY": "f.example"}).values
    config = build(json.loads(json.dumps(values)))  # as a worker gets it
    assert {name: str(upstream.way) for name, upstream in config.upstreams.items()} == {
        "absent": "proxy:3128", "null_is_absent": "proxy:3128", "own": "own:1", "direct": "None", "asked": "None",
        "exempt": "None",
    }  # fmt: skip
    assert {str(upstream.way) for upstream in build(resolve(FILE, {}).values).upstreams.values()} == {"None", "own:1"}
    config = build(resolve(FILE, {"MY_PROXY": "http://mine:2", "HTTPS_PROXY": "http://proxy:3128"}).values)
    assert str(config.upstreams["asked"].way) == "mine:2"


def faults_of(text: str, env: dict[str, str]) -> list[ConfigFault]:
    with pytest.raises(ConfigError) as caught:
        build(resolve(text, env).values)
    return caught.value.faults


@pytest.mark.parametrize("proxy", ["socks5://u:secret@proxy:1080", "http://u:secret@proxy", "http://u:secret/@proxy:1"])
def test_fault_of_the_environment_names_its_variable_and_not_its_text(proxy: str) -> None:
    faults = faults_of(FILE, {"HTTPS_PROXY": proxy, "NO_PROXY": "b.example"})
    assert [fault.path for fault in faults] == ["upstreams.absent.proxy", "upstreams.exempt.proxy"]
    for fault in faults:
        assert fault.message.startswith("the environment variable HTTPS_PROXY names no usable proxy: expected http://")
        assert "or set proxy: '' to go without" in fault.message
        assert "secret" not in str(fault)
        assert len(str(fault)) < 250


def test_faults_of_the_environment_are_reported_with_all_others() -> None:
    text = FILE.replace("http://own:1", "ftp://own") + 'server: {port: x}\nadmin: {token: "${NOT_SET}"}\n'
    paths = {fault.path for fault in faults_of(text, {"all_proxy": "https://proxy:1", "no_proxy": "b.example"})}
    assert paths == {
        "upstreams.absent.proxy", "upstreams.exempt.proxy", "upstreams.own.proxy", "server.port", "admin.token",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["upstreams: 5", "upstreams: {a: 5, b: {base_url: 7}, c: {base_url: 'https://['}}"])
def test_a_file_of_any_shape_raises_only_config_errors(text: str) -> None:
    assert all("environment" not in fault.message for fault in faults_of(text, {"ALL_PROXY": "nonsense://"}))
