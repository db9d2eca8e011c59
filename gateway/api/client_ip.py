"""The client's address behind proxies: X-Forwarded-For, as far as it is trustworthy.

Each proxy appends the address that it was called from, so the list is only as good as its writers, from the right: what
a trusted proxy has appended is true, and everything left of the first address that is not a trusted proxy's may have
been made up by the client. (The same reading as nginx's real_ip_recursive.)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


def client_address(peer: str | None, forwarded: Sequence[str], trusted: Sequence[Network]) -> str | None:
    """The client's address, given that of the connection and the values of X-Forwarded-For in their order.

    None: a trusted proxy does not know it (`unknown`), or sent a text that is no address. All trusted: the first.
    """
    address = read_address(peer or "")
    if address is None or not forwarded or not _is_in(address, trusted):
        return peer
    for hop in reversed(",".join(forwarded).split(",")):
        address = read_address(_without_port(hop.strip(" \t")))
        if address is None or not _is_in(address, trusted):
            break
    return None if address is None else str(address)


@lru_cache(maxsize=1024)
def read_address(text: str) -> Address | None:
    """The address that this is, IPv4 where it is mapped into IPv6; None where it is none."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _without_port(hop: str) -> str:
    """Some proxies add one: `192.0.2.1:4711`, `[2001:db8::1]:4711`."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    host, colon, port = hop.partition(":")
    return host if colon and ":" not in port else hop


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)
