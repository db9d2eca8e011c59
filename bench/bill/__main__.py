"""`python -m bench.bill --calls 20000`: calls of mixed formats with kills, cuts, clients that leave, other users of the
account and a price that changes in the middle, against a simulated provider. Prints each cause as it was injected and
as `gateway bill` explains it; exits with 1 where they differ by more than docs/billing.md allows."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path

from .run import run
from .verdict import NUSD, Verdict


def table(verdict: Verdict) -> str:
    """The amounts by cause."""
    lines = [f"{count:>8,}  {kind.value}" for kind, count in verdict.calls.items()]
    lines += ["", f"bill {verdict.bill / NUSD:.9f} USD, records {verdict.recorded / NUSD:.9f} USD", ""]
    lines.append(f"{'cause':<14}{'injected USD':>18}{'explained USD':>18}{'of the bill':>14}")
    for cause, amount in verdict.explained.items():
        injected = verdict.injected.get(cause, 0)
        if amount or injected:
            share = 100 * amount / verdict.bill
            lines.append(f"{cause:<14}{injected / NUSD:>18.9f}{amount / NUSD:>18.9f}{share:>12.4f} %")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.bill", description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=43)
    asked = parser.parse_args(arguments)
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # a killed worker breaks off answers of the provider
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gateway-bill-") as folder:
        verdict = asyncio.run(run(asked.calls, asked.seed, Path(folder), lambda text: print(text, flush=True)))
    print(f"{table(verdict)}\n\n{time.monotonic() - began:.0f} s")
    for complaint in verdict.complaints[:20]:
        print(complaint, file=sys.stderr)
    return 1 if verdict.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
