"""The health check of the image: `python -m gateway.process.healthcheck [PATH]`; exit code 0: the gateway answers 200.

It asks the ports on which this user listens, so it follows `server.port` and `--port` without reading the
configuration, which would take longer than the check. Linux only, and for a user that runs nothing else.
"""

from __future__ import annotations

import http.client
import os
import sys
from collections.abc import Iterable
from pathlib import Path

TABLES = {"127.0.0.1": Path("/proc/net/tcp"), "::1": Path("/proc/net/tcp6")}
"""The kernel's sockets, by the local address that reaches them."""

LISTENS = "0A"
TIMEOUT_S = 2.0


def listening(table: str, uid: int) -> list[int]:
    rows = [line.split() for line in table.splitlines()[1:]]
    return [int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == LISTENS and row[7] == str(uid)]


def is_any_good(ports: Iterable[tuple[str, int]], path: str) -> bool:
    """Whether one of these addresses answers 200. Without a proxy that the environment names for the upstreams."""
    return any(_is_good(host, port, path) for host, port in ports)


def _is_good(host: str, port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def main() -> int:
    path = sys.argv[1] if len(sys.argv) > 1 else "/healthz"
    ports = [
        (host, port)
        for host, table in TABLES.items()
        if table.exists()
        for port in listening(table.read_text(), os.getuid())
    ]
    return 0 if is_any_good(ports, path) else 1


if __name__ == "__main__":
    sys.exit(main())
