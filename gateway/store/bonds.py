"""Bonds: to whom the ids belong that upstreams have given to what they keep (`Bond`), shared by all workers.

A bond lives for `BOND_KEPT_S`, as long as OpenAI keeps a response (platform.openai.com, "Data controls"), and of one
key only the newest `BONDS_KEPT` stay. A Redis that loses data may lose bonds; then their ids are unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Protocol

from gateway.records import Bond

BOND_KEPT_S = 30 * 86400
"""Seconds for which a bond is kept after it was last written."""

BONDS_KEPT = 10_000
"""The newest bonds of one key that are kept: about 3 MB."""

CONVERSATION = "conversation"
"""The kind of bonds whose `tokens` are added to what is stored: several requests may change one at once."""

SETTLED = "settled"
"""The note of a batch whose usage is recorded."""

KIND = Bond._fields.index("kind")

_ID = re.compile(r"[A-Za-z0-9_.:+=~-]{1,256}")


class BondStore(Protocol):
    """The store of bonds. Every method raises `StoreUnavailable`."""

    async def add_bond(self, bond: Bond, now: float) -> None:
        """Write a bond at the Unix time `now` (seconds), in place of an earlier one of the same id and key, or with its
        tokens added to those of it (`CONVERSATION`). A bond of
        the same id with another key stays as it is. Deletes what is too old or too many."""

    async def find_bond(self, bond_id: str, now: float) -> Bond | None:
        """The bond of this id, of any key."""

    async def bonds_of(self, key: str, kind: str, now: float) -> list[Bond]:
        """Every bond of this kind that the key with this id has, the newest first: at most `BONDS_KEPT`."""

    async def remove_bond(self, bond: Bond) -> None: ...


def item_bonds(bond: Bond, items: Sequence[str], tokens: int) -> list[Bond]:
    """Bonds with the items of an answer that has this bond, which share its output of `tokens`."""
    share = tokens // len(items) if items else 0
    return [bond._replace(id=each, tokens=share, kind="item", note="") for each in items]


def owner_of(bond: Bond) -> str:
    """Among whose newest bonds this one counts: those with items of answers, of which an answer has several, do not
    displace others."""
    return f"{bond.key} items" if bond.kind == "item" else bond.key


def owners_of(key: str) -> tuple[str, str]:
    """All possible results of `owner_of` for the bonds of this key."""
    return key, f"{key} items"


def is_bond_id(text: str) -> bool:
    """Whether a text may be the id of a bond."""
    return _ID.fullmatch(text) is not None


def encode_bond(bond: Bond) -> str:
    """Encodes a bond as text for the stores. The kind is the member of index `KIND`."""
    return json.dumps(bond, separators=(",", ":"))


def decode_bond(text: str) -> Bond:
    """The bond of a text. A newer gateway's further members are left out."""
    values: list[Any] = json.loads(text)
    return Bond(*values[: len(Bond._fields)])
