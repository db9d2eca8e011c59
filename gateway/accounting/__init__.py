"""One worker's access to the ledger: between a call and the store.

`LedgerClient` implements `gateway.store.Ledger` over a store and a journal: it sends batches, writes the journal, and
handles outages and stores that lost writes. `recovery` delivers the journals of dead workers; `offline_quota` decides
what a worker may admit during an outage.
"""

from .ledger_client import LedgerClient
