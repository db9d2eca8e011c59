"""nginx, twice: the proxy that the gateway is held against, and the upstream of whole answers."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
from pathlib import Path

from . import calls
from .processes import Program, listener


def where() -> str | None:
    """The program; Debian keeps it where not every user looks."""
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def version() -> str:
    """nginx/1.22.1"""
    told = subprocess.run([where() or "nginx", "-v"], capture_output=True, text=True, check=False, timeout=10)
    return told.stderr.strip().rpartition(" ")[2]


def proxy(folder: Path, core: int, upstream: int, *, is_buffered: bool) -> Program:
    """One worker that forwards every call to this port, over connections that it keeps."""
    return _start("nginx", folder, core, f"""
        upstream behind {{ server 127.0.0.1:{upstream}; keepalive 1024; keepalive_requests 100000000; }}
        server {{
            listen 127.0.0.1:PORT;
            location / {{
                proxy_pass http://behind;
                proxy_http_version 1.1;
                proxy_set_header Connection "";
                proxy_buffering {"on" if is_buffered else "off"};
            }}
        }}""")  # fmt: skip


def upstream(folder: Path, core: int) -> Program:
    """Gives everybody the same whole answer."""
    return _start("the upstream (nginx)", folder, core, f"""
        server {{
            listen 127.0.0.1:PORT;
            default_type application/json;
            location / {{ return 200 '{calls.answer().decode()}'; }}
        }}""")  # fmt: skip


def _start(name: str, folder: Path, core: int, http: str) -> Program:
    """It takes over a socket that listens already (as in nginx's own upgrades), so the kernel can choose the port."""
    file = folder / "nginx.conf"
    with listener() as ears:
        port, number = ears.getsockname()[1], ears.fileno()
        file.write_text(_config(folder, http.replace("PORT", str(port))))
        command = [where() or "nginx", "-p", str(folder), "-c", str(file), "-e", "stderr"]
        return Program(name, command, folder, core, port, env={"NGINX": f"{number};"}, inherited=[number])


def _config(folder: Path, http: str) -> str:
    user = f"user {getpass.getuser()};" if os.geteuid() == 0 else ""  # else the worker may not enter the folder
    temporary = "\n".join(
        f"    {kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"""{user}
worker_processes 1;
worker_rlimit_nofile 8192;
daemon off;
pid {folder}/pid;
error_log stderr error;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    keepalive_timeout 1h;
    keepalive_requests 100000000;
{temporary}
{http}
}}
"""
