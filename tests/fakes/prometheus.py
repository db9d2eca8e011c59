"""A real Prometheus that scrapes gateways of a test, on 127.0.0.1.

with prometheus(tmp_path, [gateway.port]) as server:
    server.query("sum by (key) (gateway_requests_total)")          # {(("key", "alice"),): 3.0}
"""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from tests.deploy.programs import PATIENCE_S, Running, on_some_port

from .redis_servers import ROOT

RULES = ROOT / "deploy" / "prometheus"
SCRAPED_EVERY_S = 1

Labels = tuple[tuple[str, str], ...]


class Refused(Exception):
    """Prometheus cannot answer this; the text is its own."""


class Prometheus:
    """See the head of the file."""

    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str, **query: str) -> Any:
        """The data of an answer of its API. Raises `Refused`, with what it says."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise Refused(f"{query}: {json.load(error)['error']}") from None

    def query(self, expression: str) -> dict[Labels, float]:
        """What it is now; labels in the order of their names, without that of the metric."""
        rows = self.get("query", query=expression)["result"]
        return {_labels(row["metric"]): float(row["value"][1]) for row in rows}

    def samples(self, selector: str, since: float, until: float) -> dict[Labels, list[tuple[float, float]]]:
        """What was scraped or worked out between these Unix times: when, and the value."""
        rows = self.get("query", query=f"{selector}[{int(1000 * (until - since))}ms]", time=str(until))["result"]
        return {_labels(row["metric"]): [(at, float(value)) for at, value in row["values"]] for row in rows}


def _labels(metric: Mapping[str, str]) -> Labels:
    return tuple(sorted((name, value) for name, value in metric.items() if name != "__name__"))


@contextlib.contextmanager
def prometheus(folder: Path, gateways: Sequence[int], rules: Path = RULES) -> Iterator[Prometheus]:
    """One that scrapes the gateways on these ports, with the rules of deploy/prometheus, or of another folder."""
    config = {
        "global": {"scrape_interval": f"{SCRAPED_EVERY_S}s", "evaluation_interval": f"{SCRAPED_EVERY_S}s"},
        "rule_files": [str(rules / "*.yaml")],
        "scrape_configs": [
            {"job_name": "gateway", "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in gateways]}]}
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))

    def start(port: int) -> Running:
        return Running(folder, [
            "prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
        ])  # fmt: skip

    def answers(port: int) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=PATIENCE_S) as answer:
            return bool(answer.status == 200)

    with on_some_port(start, answers) as (port, _):
        yield Prometheus(port)
