"""The Helm chart and the kustomization by the programs themselves: helm renders the golden files, kustomize builds."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from tests.deploy.chart import (
    CASES,
    CHART,
    COPIES,
    GOLDEN,
    ChartError,
    Manifest,
    golden,
    identity,
    render,
    shortened,
    values_of,
)  # fmt: skip
from tests.deploy.programs import run
from tests.deploy.slow import test_kubernetes as manifests


@pytest.mark.parametrize("case", CASES)
def test_the_golden_file_is_what_helm_renders(case: str) -> None:
    rendered = list(shortened(render("--values", values_of(case))))
    kept = list(yaml.safe_load_all((GOLDEN / f"{case}.yaml").read_text()))
    assert rendered == kept, f"golden/{case}.yaml is not what the chart renders: run `make chart` and look at the diff"


@pytest.mark.parametrize("case", CASES)
def test_helm_lint_has_no_complaint(case: str) -> None:
    received = run("helm", "lint", "--strict", "--kube-version", "1.30.0", "--values", values_of(case), CHART)
    assert received.returncode == 0, received.stdout
    assert "[WARNING]" not in received.stdout


def test_rules_and_dashboard_are_rendered_unchanged() -> None:
    rendered = {identity(each): each for each in render("--values", values_of("monitored"))}
    for name in ("recording", "alerts"):
        expected = yaml.safe_load(COPIES[f"{name}.yaml"].read_text())
        assert rendered["PrometheusRule", f"gateway-{name}"]["spec"] == expected
    data = rendered["ConfigMap", "gateway-dashboard"]["data"]
    assert data["completions-gateway.json"].strip() == COPIES["dashboard.json"].read_text().strip()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"redis": {"enabled": False}}, "config.store.url is not set"),
        (
            {"redis": {"enabled": False}, "config": {"store": {"url": "embedded:./data"}}},
            "several pods cannot share",
        ),
        ({"config": {"admin": {"listen": ""}}}, "config.admin.listen must be host:port"),
        ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs is empty"),
        ({"adminHttpRoute": {"enabled": True}}, "adminHttpRoute.parentRefs is empty"),
        ({"replica": 3}, "replica"),
    ],
)
def test_values_that_do_not_fit_are_refused(values: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(ChartError, match=re.escape(said)):
        render("--values", tmp_path / "values.yaml")


def test_limits_and_prices_change_without_a_restart_and_a_store_with_one(tmp_path: Path) -> None:
    def restart_of(config: dict[str, Any]) -> str:
        (tmp_path / "values.yaml").write_text(yaml.safe_dump({"config": config}))
        (pods,) = [
            each
            for each in render("--values", tmp_path / "values.yaml")
            if identity(each) == ("StatefulSet", "gateway")
        ]
        found: str = pods["spec"]["template"]["metadata"]["annotations"]["checksum/restart"]
        return found

    same = restart_of({})
    assert restart_of({"keys": [], "server": {"drain_delay_s": 20}, "metrics": {"token": None}}) == same
    assert restart_of({"server": {"workers": 3}}) != same
    assert restart_of({"store": {"on_outage": "deny"}}) != same
    assert restart_of({"admin": {"listen": "0.0.0.0:9999"}}) != same


# ------------------------------------------------------------------------------------------------- volumes that run


class Cluster(BaseHTTPRequestHandler):
    """As much of an API server as `lookup` of a template asks: discovery, and these StatefulSets of the chart."""

    running: ClassVar[dict[str, Manifest]] = {}

    def do_GET(self) -> None:
        found = self.answer(self.path.partition("?")[0])
        body = json.dumps(found or {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}).encode()
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer(self, path: str) -> Manifest | None:
        version = {"groupVersion": "apps/v1", "version": "v1"}
        kind = {"name": "statefulsets", "namespaced": True, "kind": "StatefulSet", "verbs": ["get"]}
        discovery: dict[str, Manifest] = {
            "/version": {"major": "1", "minor": "30", "gitVersion": "v1.30.0"},
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
            "/apis": {
                "kind": "APIGroupList",
                "groups": [{"name": "apps", "versions": [version], "preferredVersion": version}],
            },
            "/apis/apps/v1": {"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [kind]},
        }
        return discovery.get(path) or self.running.get(
            path.removeprefix("/apis/apps/v1/namespaces/gateway/statefulsets/")
        )

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def cluster() -> Iterator[str]:
    """The address of an API server that has the StatefulSets of the case `default`."""
    sets = [each for each in golden("default") if each["kind"] == "StatefulSet"]

    class Running(Cluster):
        running: ClassVar = {each["metadata"]["name"]: each for each in sets}

    with ThreadingHTTPServer(("127.0.0.1", 0), Running) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, None),
        ({"replicas": 5, "config": {"server": {"workers": 4}}}, None),
        ({"redis": {"enabled": False}, "config": {"store": {"url": "redis://r:6379/0"}}}, None),
        ({"journal": {"size": "9Gi"}}, "journal asks for 9Gi of storage class (default), but StatefulSet gateway runs"),
        ({"journal": {"storageClassName": "fast"}}, "5Gi of storage class fast, but StatefulSet gateway runs with 5Gi"),
        ({"journal": {"emptyDir": True}}, "journal asks for an emptyDir, but StatefulSet gateway runs with 5Gi"),
        ({"redis": {"size": "40Gi"}}, "kubectl delete statefulset gateway-redis --namespace gateway --cascade=orphan"),
    ],
    ids=str,
)
def test_an_upgrade_that_kubernetes_would_refuse_changes_nothing(
    values: dict[str, Any], said: str | None, cluster: str, tmp_path: Path
) -> None:
    """Kubernetes refuses other volumes of a StatefulSet after Helm has changed Services, and the release is stuck."""
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    of_cluster = ("--dry-run=server", "--kube-apiserver", cluster, "--values", tmp_path / "values.yaml")
    if said is None:
        assert render(*of_cluster)
        return
    with pytest.raises(ChartError, match=re.escape(said)):
        render(*of_cluster)


# ------------------------------------------------------------------------------------------------------- kustomize


def kustomized(folder: Path, components: str) -> dict[tuple[str, str], Manifest]:
    """What kustomize builds with these components, with the route of the dashboard."""
    shutil.copytree(manifests.FOLDER, folder)
    for file in folder.rglob("kustomization.yaml"):
        text = file.read_text().replace("components: []", f"components: [{components}]")
        file.write_text(text.replace("# - admin.yaml", "- admin.yaml"))
    received = run("kustomize", "build", folder)
    assert received.returncode == 0, received.stdout
    built = {identity(each): each for each in yaml.safe_load_all(received.stdout)}
    assert {each["metadata"].get("namespace") for kind, each in built.items() if kind[0] != "Namespace"} == {"gateway"}
    return built


@pytest.mark.parametrize("has_monitoring", [False, True])
def test_kustomize_builds_all_manifests(has_monitoring: bool, tmp_path: Path) -> None:
    built = kustomized(tmp_path / "kubernetes", "monitoring" if has_monitoring else "")
    assert ("replicas" in built["StatefulSet", "gateway"]["spec"]) != has_monitoring
    kinds = {kind for kind, _ in built}
    of_monitoring = {"HorizontalPodAutoscaler", "ServiceMonitor", "PrometheusRule"}
    assert of_monitoring & kinds == (of_monitoring if has_monitoring else set())
    dashboards = [each for each in built.values() if each["metadata"].get("labels", {}).get("grafana_dashboard")]
    assert [list(each["data"]) for each in dashboards] == [["completions-gateway.json"]] * has_monitoring


def test_kustomize_builds_an_ingress_and_a_route_with_the_names_of_their_patches(tmp_path: Path) -> None:
    built = kustomized(tmp_path / "kubernetes", "ingress, httproute")
    for name, host in (("gateway", "gateway.example.com"), ("gateway-admin", "gateway-admin.example.com")):
        ingress, route = built["Ingress", name]["spec"], built["HTTPRoute", name]["spec"]
        assert [rule["host"] for rule in ingress["rules"]] == route["hostnames"] == [host]
        assert ingress["tls"] == [{"hosts": [host], "secretName": f"{name}-tls"}]
    assert built["Ingress", "gateway"]["spec"]["ingressClassName"] == "nginx"
    assert built["Ingress", "gateway-admin"]["spec"]["ingressClassName"] == "internal"
