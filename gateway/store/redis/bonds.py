"""Bonds in Redis: one key each with a lifetime, and of each gateway key the set of its bonds."""

from __future__ import annotations

from gateway.records import Bond
from gateway.store.bonds import BOND_KEPT_S, BONDS_KEPT, decode_bond, encode_bond

from .connection import RedisConnection, Script


async def add_bond(link: RedisConnection, script: Script, base: str, bond: Bond, now: float) -> None:
    """As `BondStore.add_bond`."""
    keys = [f"{base}bond:{bond.id}", f"{base}bonds:{bond.key}"]
    await link.run(
        script,
        keys,
        [f"{base}bond:", bond.id, bond.key, encode_bond(bond), str(int(now)), str(BOND_KEPT_S), str(BONDS_KEPT)],
    )


async def find_bond(link: RedisConnection, base: str, bond_id: str, now: float) -> Bond | None:
    """As `BondStore.find_bond`."""
    (text,) = await link.ask(("GET", f"{base}bond:{bond_id}"))
    if text is None:
        return None
    until, _, told = text.partition(" ")
    return decode_bond(told) if int(until) >= now else None


async def remove_bond(link: RedisConnection, base: str, bond: Bond) -> None:
    """As `BondStore.remove_bond`."""
    await link.ask(("DEL", f"{base}bond:{bond.id}"), ("ZREM", f"{base}bonds:{bond.key}", bond.id))
