"""The proxy for an upstream: its setting, or the environment's if it has none.

The environment is read here, once, and its value is written into the plain values: workers and connection pools use
only the setting. The rules are curl's: lower case wins, an empty variable is none, `HTTP_PROXY` in capitals is not
looked at (a CGI server would fill it from a client's `Proxy:` header), and the loopback is exempt only if
`no_proxy` lists it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from .faults import ConfigFault, format_faults

_FORM = "expected http://host:port or http://user:password@host:port"


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy that is asked with CONNECT. Its `repr` shows no credentials."""

    host: str
    port: int
    credentials: SecretStr | None = None
    """`user:password`; None: none are sent."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def basic(self) -> SecretStr | None:
        """The credentials after `Basic` in Proxy-Authorization (RFC 7617)."""
        if self.credentials is None:
            return None
        return SecretStr(base64.b64encode(self.credentials.get_secret_value().encode()).decode())

    @property
    def secrets(self) -> tuple[str, ...]:
        if self.credentials is None or self.basic is None:
            return ()
        pair = self.credentials.get_secret_value()
        return pair, self.basic.get_secret_value(), pair.partition(":")[2]


def client_arguments(way: Proxy | None, scheme: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of a request by aiohttp's client, on this way. A proxy that is asked with CONNECT, for https, gets
    its credentials in that request alone."""
    if way is None or way.basic is None:
        return {"headers": headers} | ({} if way is None else {"proxy": f"http://{way}"})
    credentials = {"Proxy-Authorization": f"Basic {way.basic.get_secret_value()}"}
    apart = {"headers": headers, "proxy_headers": credentials}
    return {"proxy": f"http://{way}"} | (apart if scheme == "https" else {"headers": {**headers, **credentials}})


def read_proxy(text: str) -> Proxy | None:
    """The proxy that a setting names; None for an empty one. Raises ValueError, which never shows the text."""
    if not text:
        return None
    if re.search(r"[\s\x00-\x1f\x7f]", text):  # some of which urlsplit would take out without a word
        raise ValueError(f"{_FORM}, without spaces")
    if re.search(r"[\ud800-\udfff]", text):  # bytes of an environment variable that are not UTF-8
        raise ValueError(f"{_FORM}, in UTF-8")
    if "://" in text and not text.lower().startswith("http://"):
        raise ValueError(f"{_FORM}; proxies of another kind than http do not work")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
        user, password = (unquote(part or "", errors="strict") for part in (parts.username, parts.password))
    except ValueError:  # UnicodeDecodeError is one
        raise ValueError(f"{_FORM}; / ? # @ and % in a password are written %2F %3F %23 %40 %25") from None
    if parts.scheme != "http" or not _is_host(host) or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(_FORM)
    if not port:
        raise ValueError(f"{_FORM}; the port is missing, and there is none that every proxy uses")
    if parts.username is None:
        return Proxy(host, port)
    if ":" in user or re.search(r"[\x00-\x1f\x7f]", user + password):
        raise ValueError("a user with a colon, or a control character, cannot be sent to a proxy")
    return Proxy(host, port, SecretStr(f"{user}:{password}"))


def _is_host(host: str) -> bool:
    if ":" not in host:
        return re.fullmatch(r"[A-Za-z0-9._-]+", host) is not None
    try:
        return bool(ip_address(host))
    except ValueError:
        return False


# --------------------------------------------------------------------------------------------------- the environment


Addressed = tuple[tuple[str, ...], dict[str, Any], Any]
"""A part of the plain values that may have a `proxy`: its place, the part, and the address that is reached."""


def apply_environment(
    values: Mapping[str, Any], env: Mapping[str, str], addresses: Iterable[Addressed] = ()
) -> Iterator[ConfigFault]:
    """Give each upstream, and each part of `addresses`, without a `proxy` of its own the one from the environment;
    returns the faults.

    `values` are the file's plain values, of any shape: their other faults are reported elsewhere.
    """
    upstreams = values.get("upstreams")
    named = upstreams.items() if isinstance(upstreams, dict) else ()
    own = [(("upstreams", name), each, each.get("base_url")) for name, each in named if isinstance(each, dict)]
    for place, section, address in [*own, *addresses]:
        if section.get("proxy") is not None:
            continue
        variable, text = proxy_for(str(address), env)
        try:
            if read_proxy(text) is not None:
                section["proxy"] = text
        except ValueError as error:
            what = f"the environment variable {variable} names no usable proxy: {error}; or set proxy: '' to go without"
            yield ConfigFault(format_faults((*place, "proxy")), what)


def proxy_for(url: str, env: Mapping[str, str]) -> tuple[str, str]:
    """(variable, its text) of the environment's proxy for this address; ("", "") where it is reached directly."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return "", ""
    variables = {"https": ("https_proxy", "HTTPS_PROXY"), "http": ("http_proxy",)}.get(parts.scheme, ())
    if not host or not variables or is_exempt(host, port, env.get("no_proxy") or env.get("NO_PROXY") or ""):
        return "", ""
    for variable in (*variables, "all_proxy", "ALL_PROXY"):
        if text := env.get(variable, "").strip():
            return variable, text if "://" in text else f"http://{text}"
    return "", ""


def is_exempt(host: str, port: int, no_proxy: str) -> bool:
    """Whether `no_proxy` lists this host: `*`, a name (and all names below it), an address or a network, each with or
    without a port; between commas or spaces. Unreadable entries exempt no host."""
    return any(_is_listed(host.lower().rstrip("."), port, item) for item in re.split(r"[\s,]+", no_proxy.lower()))


def _is_listed(host: str, port: int, item: str) -> bool:
    name, only_port = item, None
    if found := re.fullmatch(r"\[(?P<v6>[^\]]*)\](?::(?P<port6>\d{1,5}))?|(?P<name>[^:]*):(?P<port>\d{1,5})", item):
        name, only_port = found["v6"] or found["name"], found["port6"] or found["port"]
    if not name or (only_port and int(only_port) != port):
        return False
    if name == "*":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        name = name.removeprefix("*.").strip(".")
        return bool(name) and (host == name or host.endswith(f".{name}"))
    try:
        return address in ip_network(name, strict=False)
    except ValueError:
        return False
