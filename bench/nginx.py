"""nginx in two roles: the proxy that the gateway is compared with, and the upstream of plain answers."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
from pathlib import Path

from . import calls
from .processes import Program, listener

CONNECTIONS = 4096
"""Per worker, which allocates memory for all of them at its start."""


def where() -> str | None:
    """The path of the program; on Debian it may be outside of PATH."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def version() -> str:
    """For example nginx/1.22.1."""
    received = subprocess.run([where() or "nginx", "-v"], capture_output=True, text=True, check=False, timeout=10)
    return received.stderr.strip().rpartition(" ")[2]


def proxy(
    folder: Path, core: int, upstream: int, *, is_buffered: bool, ca_file: Path | None = None,
    connections: int = CONNECTIONS,
) -> Program:  # fmt: skip
    """One worker that forwards every call to this port over kept connections; with TLS if `ca_file` is given."""
    scheme = "http" if ca_file is None else "https"
    trust = (
        "" if ca_file is None
        else f"proxy_ssl_trusted_certificate {ca_file}; proxy_ssl_verify on; proxy_ssl_name localhost;"
    )  # fmt: skip
    return _start("nginx", folder, core, connections=connections, http=f"""
        upstream behind {{ server 127.0.0.1:{upstream}; keepalive 1024; keepalive_requests 100000000; }}
        server {{
            listen 127.0.0.1:PORT;
            location / {{
                proxy_pass {scheme}://behind;
                proxy_http_version 1.1;
                proxy_set_header Connection "";
                proxy_buffering {"on" if is_buffered else "off"};
                {trust}
            }}
        }}""")  # fmt: skip


def upstream(folder: Path, core: int, answer: bytes = calls.answer(), server_file: Path | None = None) -> Program:
    """Answers every call the same; with TLS if `server_file` (key and certificate) is given."""
    secure = "" if server_file is None else f"ssl_certificate {server_file}; ssl_certificate_key {server_file};"
    return _start("the upstream (nginx)", folder, core, f"""
        server {{
            listen 127.0.0.1:PORT{" ssl" if server_file is not None else ""};
            {secure}
            default_type application/json;
            location / {{ return 200 '{answer.decode()}'; }}
        }}""")  # fmt: skip


def _start(name: str, folder: Path, core: int, http: str, connections: int = CONNECTIONS) -> Program:
    """nginx inherits a listening socket (as in its own upgrades), so that the kernel can choose the port."""
    file = folder / "nginx.conf"
    with listener() as ears:
        port, number = ears.getsockname()[1], ears.fileno()
        file.write_text(_config(folder, http.replace("PORT", str(port)), connections))
        command = [where() or "nginx", "-p", str(folder), "-c", str(file), "-e", "stderr"]
        return Program(name, command, folder, core, port, env={"NGINX": f"{number};"}, inherited=[number])


def _config(folder: Path, http: str, connections: int) -> str:
    user = f"user {getpass.getuser()};" if os.geteuid() == 0 else ""  # else the worker may not enter the folder
    temporary = "\n".join(
        f"    {kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"""{user}
worker_processes 1;
daemon off;
pid {folder}/pid;
error_log stderr error;
events {{ worker_connections {connections}; }}
http {{
    access_log off;
    client_max_body_size 0;
    client_body_buffer_size 512k;
    keepalive_timeout 1h;
    keepalive_requests 100000000;
{temporary}
{http}
}}
"""
