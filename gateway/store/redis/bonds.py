"""Bonds in Redis: one key each, and of each gateway key the set of its bonds."""

from __future__ import annotations

from gateway.records import Bond
from gateway.store.bonds import BOND_KEPT_S, BONDS_KEPT, CONVERSATION, decode_bond, encode_bond, owner_of

from .connection import RedisConnection, Script

READ_AT_ONCE = 500


async def add_bond(link: RedisConnection, script: Script, base: str, bond: Bond, now: float) -> None:
    keys = [f"{base}{name}" for name in (f"bond:{bond.id}", f"bonds:{owner_of(bond)}", "ages", "retention")]
    place = Bond._fields.index("tokens") + 1 if bond.kind == CONVERSATION else 0
    numbers = [str(each) for each in (int(now), BOND_KEPT_S, BONDS_KEPT, place)]
    await link.run(script, keys, [base, bond.id, bond.key, encode_bond(bond), *numbers])


async def find_bond(link: RedisConnection, base: str, bond_id: str, now: float) -> Bond | None:
    (text,) = await link.ask(("GET", f"{base}bond:{bond_id}"))
    return _read(text, now)


async def bonds_of(link: RedisConnection, base: str, key: str, kind: str, now: float) -> list[Bond]:
    (ids,) = await link.ask(("ZREVRANGE", f"{base}bonds:{key}", "0", str(BONDS_KEPT - 1)))
    found: list[Bond] = []
    for at in range(0, len(ids), READ_AT_ONCE):
        (texts,) = await link.ask(("MGET", *[f"{base}bond:{name}" for name in ids[at : at + READ_AT_ONCE]]))
        bonds = [_read(text, now) for text in texts]
        found += [bond for bond in bonds if bond is not None and bond.key == key and bond.kind == kind]
    return sorted(found, key=lambda bond: -bond.made)  # a bond that is written again has another place in the set


def _read(text: str | None, now: float) -> Bond | None:
    if text is None:
        return None
    until, _, encoded = text.partition(" ")
    return decode_bond(encoded) if int(until) >= now else None


async def remove_bond(link: RedisConnection, base: str, bond: Bond) -> None:
    await link.ask(("DEL", f"{base}bond:{bond.id}"), ("ZREM", f"{base}bonds:{owner_of(bond)}", bond.id))
