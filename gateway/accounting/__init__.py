"""The worker's side of the books: what stands between a call and the store.

`LedgerClient` keeps the promise `gateway.store.Ledger` over a store and a journal. It sends batches, writes the
journal,
and knows what to do while the store is away or has forgotten something. `adoption` delivers what dead workers left
behind, `outage` is what a worker may spend on its own.
"""

from .ledger_client import LedgerClient

__all__ = ["LedgerClient"]
