"""`make stack`: two gateways, nginx, Redis, Prometheus and two upstreams, and what happens to them under load.

Steady load, a rolling restart, a restart and a death of Redis, a reload, an upstream's death and return. Then: no call
has failed that the contract does not name, and the clients, the upstreams, the records, the quotas, the access lines
and Prometheus have written down the same; the alerts that had to come came, and no others.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
from pathlib import Path

from tests.deploy.programs import MissingProgram
from tests.fakes.redis_servers import MissingServer
from tests.soak.verdict import tell

from .place import Place
from .run import Stack


def main() -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.stack", description="The whole stack, while parts of it die."
    )
    parser.add_argument("--steady-s", type=float, default=20.0, help="how long nothing happens at first")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        del os.environ[name]  # they are no business of what happens on this machine alone
    print(f"seed {args.seed}\n")
    with tempfile.TemporaryDirectory(prefix="gateway-stack-") as folder:
        try:
            with Place(Path(folder)) as place:
                stack = Stack(place, args.seed, steady_s=args.steady_s, is_strict=True)
                stack.run()
        except (MissingProgram, MissingServer, KeyboardInterrupt) as error:
            print(f"stack: {str(error) or 'stopped'}", file=sys.stderr)
            return 1
    return tell("stack", stack.complaints, "no call failed without cause, and the books balance")


if __name__ == "__main__":
    sys.exit(main())
