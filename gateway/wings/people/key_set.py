"""The public keys of an identity provider (JWKS, RFC 7517): fetched when a token needs them, cached, bounded.

1. A token with an unknown key id causes a fetch, at most one each `REFETCH_S`, so that a rotation is followed within
   seconds and unknown ids cannot make the gateway ask without end. All that wait for a fetch go by its result. It goes
   on where the client that caused it leaves: else such clients could keep a rotation from being followed.
2. Keys are fetched anew after `FRESH_S`. If that fails, the keys before are used for `KEPT_S` in all; then tokens are
   refused. Meanwhile only the call that fetches waits for a provider that hangs.
3. Only public signature keys of the types RSA (2048 bits at least) and EC are used. A set with a symmetric key,
   with two keys of one id, or with too many keys is refused as a whole: such a set is faulty or manipulated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from gateway import untrusted_json
from gateway.tasks import to_its_end

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, RSAKey

    PublicKey = RSAKey | ECKey

FRESH_S = 600.0
REFETCH_S = 10.0
KEPT_S = 3600.0
MAX_KEYS = 32
MIN_RSA_BITS = 2048

ALGORITHMS: Mapping[str, str] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
}
"""The algorithms of tokens that are accepted, and the type of key of each. Not `none`, and none with a shared key."""


class ProviderUnavailable(Exception):
    """The identity provider does not answer, or not as it should. The text is for an operator."""


def read_key_set(raw: bytes) -> dict[str, PublicKey]:
    """The usable keys by their ids; a key without an id has the empty one. Raises `ProviderUnavailable`."""
    from joserfc import jwk
    from joserfc.errors import JoseError

    try:
        listed = untrusted_json.parse(raw)["keys"]
        entries = [dict(entry) for entry in listed]
    except (ValueError, LookupError, TypeError):
        raise ProviderUnavailable("its key set cannot be read") from None
    if len(entries) > MAX_KEYS:
        raise ProviderUnavailable(f"its key set has more than {MAX_KEYS} keys")
    found: dict[str, PublicKey] = {}
    for entry in entries:
        if entry.get("kty") == "oct" or "d" in entry:
            raise ProviderUnavailable("its key set has a secret key, which does not belong there")
        if entry.get("use", "sig") != "sig" or entry.get("kty") not in ALGORITHMS.values():
            continue
        name = entry.get("kid", "")
        if not isinstance(name, str) or name in found:
            raise ProviderUnavailable("its key set has two keys of one id")
        if entry["kty"] == "RSA" and len(str(entry.get("n", ""))) * 6 < MIN_RSA_BITS:
            continue
        try:
            found[name] = jwk.import_key(entry)  # type: ignore[assignment] # its type was checked
        except (JoseError, ValueError, TypeError, LookupError):
            continue  # a curve or form that is not known here
    if not found:
        raise ProviderUnavailable("its key set has no usable key")
    return found


class KeySet:
    """The keys behind one address. Private to a worker."""

    def __init__(self, fetch: Callable[[], Awaitable[bytes]], clock: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._clock = clock
        self._keys: dict[str, PublicKey] = {}
        self._read_at = -KEPT_S
        self._fetched_at = -KEPT_S
        """When the last fetch ended, whatever came of it."""
        self._turn = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<KeySet of {len(self._keys)} keys, {self._clock() - self._read_at:.0f} s old>"

    async def find(self, header: Mapping[str, Any]) -> PublicKey | None:
        """The key that a token with this header must be signed with; None: there is none. Raises
        `ProviderUnavailable`."""
        if self._pick(header) is None or self._clock() - self._read_at > FRESH_S:
            await self._refresh(header)
        if self._clock() - self._read_at > KEPT_S:
            raise ProviderUnavailable("its keys cannot be fetched")
        return self._pick(header)

    def _pick(self, header: Mapping[str, Any]) -> PublicKey | None:
        kind, name = ALGORITHMS.get(str(header.get("alg"))), header.get("kid")
        if name is None:
            fitting = [key for key in self._keys.values() if key.key_type == kind]
            return fitting[0] if len(fitting) == 1 else None
        key = self._keys.get(name) if isinstance(name, str) else None
        return key if key is not None and key.key_type == kind else None

    async def _refresh(self, header: Mapping[str, Any]) -> None:
        came = self._clock()
        if self._turn.locked() and self._pick(header) is not None and came - self._read_at <= KEPT_S:
            return
        async with self._turn:
            began = self._clock()
            is_fresh = began - self._read_at <= FRESH_S
            if is_fresh and self._pick(header) is not None:
                return
            if began - self._fetched_at < REFETCH_S or self._fetched_at > came:
                return
            await to_its_end(self._read(began), "fetch-keys-of-the-provider")

    async def _read(self, began: float) -> None:
        """Fetch the keys. Raises `ProviderUnavailable` if they fail to come and those before are too old."""
        try:
            self._keys = read_key_set(await self._fetch())
            self._read_at = began
        except ProviderUnavailable:
            if self._clock() - self._read_at > KEPT_S:
                raise
        finally:
            self._fetched_at = self._clock()
