"""The address of a Redis store: the syntax of `store.url`.

    redis://[user:password@]host[:port][/db]                       one server
    rediss://[user:password@]host[:port][/db][?ca_file=/path]      one server, over TLS
    redis+sentinel://[user:password@]h1[:port],h2/service[/db]     the current master according to the Sentinels
    redis+cluster://[user:password@]h1[:port],h2                   the node of a cluster that has the store's slot

User and password are percent-encoded; they are for the servers, and are not sent to Sentinels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Literal
from urllib.parse import parse_qsl, unquote

from pydantic import SecretStr

REDIS_PORT = 6379
SENTINEL_PORT = 26379

RedisKind = Literal["redis", "rediss", "redis+sentinel", "redis+cluster"]

FORMS = {
    "redis": "redis://host:6379/0",
    "rediss": "rediss://host:6379/0",
    "redis+sentinel": "redis+sentinel://host1,host2/service/0",
    "redis+cluster": "redis+cluster://host1,host2",
}
"""The form of each scheme."""

_ENCODED = "in a user or password, / ? # @ : , and % are written %2F %3F %23 %40 %3A %2C %25"


@dataclass(frozen=True, slots=True)
class RedisURL:
    """The address of a Redis store, with credentials. Neither its `repr` nor its `str` shows credentials."""

    kind: RedisKind
    hosts: tuple[tuple[str, int], ...]
    """Names or addresses, and ports: of the server, of the Sentinels, or of some nodes of the cluster."""
    db: int = 0
    service: str = ""
    """The name of the master at the Sentinels; empty without Sentinels."""
    user: str | None = field(default=None, repr=False)
    """Name of the Redis user; None: the default user."""
    password: SecretStr | None = field(default=None, repr=False)
    ca_file: str | None = None
    """PEM file with certificate authorities to trust besides the system's; whether it is there was not looked at."""

    @property
    def is_tls(self) -> bool:
        return self.kind == "rediss"

    def __str__(self) -> str:
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        service = f"/{self.service}" if self.service else ""
        return f"{self.kind}://{hosts}{service}{'' if self.kind == 'redis+cluster' else f'/{self.db}'}"


def read_redis_url(text: str) -> RedisURL:
    """The address that such a URL names. Raises ValueError, which never shows the text."""
    scheme, is_there, rest = text.partition("://")
    if scheme not in FORMS or not is_there:
        raise ValueError("expected redis://, rediss://, redis+sentinel:// or redis+cluster:// and a host")
    expected = f"expected an address like {FORMS[scheme]}"
    if re.search(r"[^\x21-\x7e]", text) or "#" in text:
        raise ValueError(f"{expected}, in ASCII and without spaces; {_ENCODED}")
    place, is_asking, query = rest.partition("?")
    netloc, _, path = place.partition("/")
    if "@" in path + query:
        raise ValueError(f"{expected}; {_ENCODED}")
    login, is_named, hosts = netloc.rpartition("@")
    user, password = _credentials(login) if is_named else (None, None)
    service, db = _path(scheme, path, expected)
    ports = SENTINEL_PORT if scheme == "redis+sentinel" else REDIS_PORT
    found = tuple(_host(one, ports, expected) for one in hosts.split(","))
    if len(found) > 1 and scheme in ("redis", "rediss"):
        raise ValueError(f"{expected}, with one host; several are for redis+sentinel:// and redis+cluster://")
    if is_asking and scheme != "rediss":
        raise ValueError(f"{expected}, with nothing behind a question mark; {_ENCODED}")
    return RedisURL(
        scheme,  # type: ignore[arg-type]  # one of FORMS
        found, db, service, user, password, _ca_file(query),
    )  # fmt: skip


def _credentials(login: str) -> tuple[str | None, SecretStr]:
    user, is_both, password = login.partition(":")
    if not is_both or not password:
        raise ValueError("expected user:password@ or :password@ before the host")
    if re.search(r"[@:,]", password) or re.search(r"%(?![0-9A-Fa-f]{2})", login):
        raise ValueError(_ENCODED)
    try:
        return unquote(user, errors="strict") or None, SecretStr(unquote(password, errors="strict"))
    except UnicodeDecodeError:
        raise ValueError("user and password are not UTF-8") from None


def _path(scheme: str, path: str, expected: str) -> tuple[str, int]:
    """The service and the number of the database."""
    parts = path.rstrip("/").split("/") if path.rstrip("/") else []
    service = ""
    if scheme == "redis+sentinel":
        if not parts or not re.fullmatch(r"[A-Za-z0-9._-]+", parts[0]):
            raise ValueError(f"{expected}: after the hosts, the name by which the Sentinels know the master")
        service = parts.pop(0)
    if len(parts) > 1 or (parts and not re.fullmatch(r"\d{1,4}", parts[0])):
        raise ValueError(f"{expected}: the last part is the number of the database")
    db = int(parts[0]) if parts else 0
    if db and scheme == "redis+cluster":
        raise ValueError("a cluster has one database only; leave its number out")
    return service, db


def _host(text: str, port: int, expected: str) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::(\d{1,5}))?", text)
    if found is None:
        raise ValueError(f"{expected}; {_ENCODED}")
    address, name, number = found.groups()
    if number is not None and not 0 < int(number) < 65536:
        raise ValueError(f"{expected}, with a port from 1 to 65535")
    if address is not None:
        try:
            ip_address(address)
        except ValueError:
            raise ValueError(f"{expected}; the text in brackets is not an IPv6 address") from None
    return address or name, int(number or port)


def _ca_file(query: str) -> str | None:
    if not query:
        return None
    values = parse_qsl(query, keep_blank_values=True, errors="strict")
    if [name for name, _ in values] != ["ca_file"]:
        raise ValueError("after the question mark only ca_file=/path is known")
    return values[0][1]
