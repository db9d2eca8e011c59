"""`make stack`: two gateways, nginx, Redis, Prometheus and two upstreams under load.

Acts: steady load, a rolling restart, a restart and a kill of Redis, a reload, a kill of an upstream and its return.
Checks: calls failed only as documented; clients, upstreams, records, quotas, access lines and Prometheus agree; the
expected alerts fired, and no others.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
from pathlib import Path

from bench.soak.verdict import tell
from tests.deploy.programs import MissingProgram
from tests.fakes.redis_servers import MissingServer

from .place import Place
from .run import Stack


def main() -> int:
    """Runs the stack; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.stack", description="The whole stack, while parts of it die."
    )
    parser.add_argument("--steady-s", type=float, default=20.0, help="how long nothing happens at first")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        del os.environ[name]  # proxies of the environment: all connections stay on this machine
    print(f"seed {args.seed}\n")
    with tempfile.TemporaryDirectory(prefix="gateway-stack-") as folder:
        try:
            with Place(Path(folder)) as place:
                stack = Stack(place, args.seed, steady_s=args.steady_s, is_strict=True)
                stack.run()
        except (MissingProgram, MissingServer, KeyboardInterrupt) as error:
            print(f"stack: {str(error) or 'stopped'}", file=sys.stderr)
            return 1
    return tell("stack", stack.complaints, "no call failed without cause, and all sums agree")


if __name__ == "__main__":
    sys.exit(main())
