"""nginx with TLS in front of gateways, with the configuration of deploy/.

with nginx(folder, [port, other], authority.server_file(NAME)) as front:
    ...                                                     # https://127.0.0.1:{front.port}
    front.leave_out(port)                                   # marks its line "down" and reloads nginx
"""

from __future__ import annotations

import getpass
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.flows.gateway_process import children, eventually

from .examples import DEPLOY, settle
from .programs import PATIENCE_S, Running, on_some_port, run

HOST = "127.0.0.1"


class Nginx(Running):
    """See the head of the file; made by `nginx`."""

    def __init__(
        self, folder: Path, gateways: Sequence[int], certificate: Path, port: int, admin_port: int | None = None
    ) -> None:
        self.port = port
        self._folder, self._gateways, self._certificate = folder, gateways, certificate
        self._admin_port = admin_port
        self._arguments = ["-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
        user = f"user {getpass.getuser()};" if os.geteuid() == 0 else ""  # else its worker may not enter the folder
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        (folder / "nginx.conf").write_text(
            f"{user}\ndaemon off;\npid {folder}/pid;\nerror_log stderr notice;\nevents {{}}\nhttp {{\naccess_log off;\n"
            + "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
            + f"\ninclude {folder}/gateway*.conf;\n}}\n"
        )
        self._write()
        super().__init__(folder, ["nginx", *self._arguments])

    def leave_out(self, *gateways: int) -> None:
        """Sends no new call to these gateways; returns once it applies. Running calls continue."""
        self._write(*gateways)
        before = children(self.pid)
        os.kill(self.pid, signal.SIGHUP)
        eventually(lambda: set(children(self.pid)) - set(before), PATIENCE_S)
        eventually(lambda: not any(map(_takes_calls, before)), PATIENCE_S)

    def _write(self, *left_out: int) -> None:
        """Raises AssertionError if nginx rejects the file or warns about it."""
        lines = [f"server {HOST}:{port} max_fails=0{' down' if port in left_out else ''};\n" for port in self._gateways]
        self._settle("nginx.conf", "gateway", {"server 127.0.0.1:8080 max_fails=0;\n": "    ".join(lines)})
        if self._admin_port is not None:
            here = {"127.0.0.1:8081": f"{HOST}:{self._admin_port}", "127.0.0.1:8080": f"{HOST}:{self._gateways[0]}"}
            self._settle("nginx-admin.conf", "gateway-admin", here)
        tried = run("nginx", *self._arguments, "-t")
        assert tried.returncode == 0, tried.stdout
        assert "[warn]" not in tried.stdout, tried.stdout

    def _settle(self, source: str, name: str, changes: Mapping[str, str]) -> None:
        settled = settle(
            (DEPLOY / source).read_text(),
            {
                **changes,
                "listen 443 ssl;": f"listen {HOST}:{self.port} ssl;",
                "    listen [::]:443 ssl;\n": "",
                f"/etc/ssl/{name}/fullchain.pem": str(self._certificate),
                f"/etc/ssl/{name}/privkey.pem": str(self._certificate),
            },
        )
        (self._folder / f"{name}.conf").write_text(settled)


def _takes_calls(worker: int) -> bool:
    """A worker that shuts down has this in its process title, and accepts no connections."""
    shown = subprocess.run(["ps", "-o", "args=", "-p", str(worker)], capture_output=True, text=True, check=False).stdout
    return bool(shown) and "shutting down" not in shown and "<defunct>" not in shown


@contextmanager
def nginx(folder: Path, gateways: Sequence[int], certificate: Path, admin_port: int | None = None) -> Iterator[Nginx]:
    """Runs nginx on a free port until the end of the block; with `admin_port` also nginx-admin.conf."""
    with on_some_port(lambda port: Nginx(folder, gateways, certificate, port, admin_port), is_up) as (_, front):
        assert isinstance(front, Nginx)
        yield front


def is_up(port: int) -> bool:
    """Whether the port accepts connections. Raises OSError if not."""
    with socket.create_connection((HOST, port), timeout=PATIENCE_S):
        return True
