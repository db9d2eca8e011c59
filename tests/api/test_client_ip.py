"""X-Forwarded-For: what trusted proxies have written counts, and nothing else."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from gateway.api import auth
from gateway.api.auth import client_address

PROXIES = (ip_network("10.0.0.0/8"), ip_network("2001:db8::/32"), ip_network("127.0.0.1/32"))


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["192.0.2.7"], "192.0.2.7"),
        ("192.0.2.9", ["192.0.2.7"], "192.0.2.9"),
        ("10.0.0.1", ["1.1.1.1, 192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["1.1.1.1", "192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["1.1.1.1,192.0.2.7,10.9.9.9"], "192.0.2.7"),
        ("10.0.0.1", ["1.1.1.1, 192.0.2.7\t,  10.9.9.9 "], "192.0.2.7"),
        ("10.0.0.1", ["10.7.7.7, 10.8.8.8"], "10.7.7.7"),
        ("10.0.0.1", ["192.0.2.7:4711"], "192.0.2.7"),
        ("10.0.0.1", ["192.0.2.7, 10.0.0.2:80"], "192.0.2.7"),
        ("10.0.0.1", ["[2001:db9::7]:4711"], "2001:db9::7"),
        ("10.0.0.1", ["[2001:db9::7]"], "2001:db9::7"),
        ("10.0.0.1", ["2001:DB9:0::7"], "2001:db9::7"),
        ("2001:db8::1", ["192.0.2.7"], "192.0.2.7"),
        ("::ffff:10.0.0.1", ["192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["::ffff:192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", ["192.0.2.7, ::ffff:10.0.0.2"], "192.0.2.7"),
        ("10.0.0.1", ["unknown"], None),
        ("10.0.0.1", ["192.0.2.7, unknown"], None),
        ("10.0.0.1", ["unknown, 192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", [""], None),
        ("10.0.0.1", ["192.0.2.7,"], None),
        ("10.0.0.1", ["10.0.0.300"], None),
        ("10.0.0.1", ["192.0.2.7:"], "192.0.2.7"),
        ("10.0.0.1", ["1" * 8000], None),
        ("10.0.0.1", ["," * 8000], None),
        ("10.0.0.1", ["10.0.0.2," * 800 + "10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["192.0.2.7," + "10.0.0.2," * 30 + "10.0.0.3"], "192.0.2.7"),
        ("10.0.0.1", ["192.0.2.7\u0661"], None),
        (None, ["192.0.2.7"], None),
        ("", ["192.0.2.7"], ""),
    ],
)
def test_client(peer: str | None, forwarded: list[str], client: str | None) -> None:
    assert client_address(peer, forwarded, PROXIES) == client


def test_a_long_chain_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(auth, "read_address", lambda text: read.append(text) or ip_address(text))
    chain = [",".join(f"10.{line}.0.{number % 250}" for number in range(900)) for line in range(8)]
    assert client_address("10.0.0.1", chain, PROXIES) in chain[-1].split(",")
    assert len(read) <= auth.MAX_HOPS + 1


def test_no_proxy_is_trusted_by_default() -> None:
    assert client_address("127.0.0.1", ["192.0.2.7"], ()) == "127.0.0.1"
