"""The manifests: valid by the schemas of Kubernetes; consistent with each other, the image and the code."""

from __future__ import annotations

import functools
import importlib.resources
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

import gateway
from gateway import cli
from gateway.config.sections import ServerSettings
from tests.deploy.examples import DEPLOY, load, make_secrets, redis_of, secret_files, settle
from tests.fakes.redis_servers import ROOT
from tests.flows import gateway_process

FOLDER = DEPLOY / "kubernetes"
SETTINGS = (FOLDER / "gateway.yaml").read_text()
BASE = "kubernetes/kustomization.yaml"
MONITORING, *ROUTES = COMPONENTS = [
    f"kubernetes/{name}/kustomization.yaml" for name in ("monitoring", "ingress", "httproute")
]
KUSTOMIZATIONS = (BASE, *COMPONENTS)
OLDEST = "1.27"
"""The minimum of kustomization.yaml: from it on, kept volume claims are on by default."""

CUSTOM = {
    "ServiceMonitor": ("monitoring.coreos.com/v1", {"selector", "endpoints"}),
    "PrometheusRule": ("monitoring.coreos.com/v1", {"groups"}),
    "HTTPRoute": ("gateway.networking.k8s.io/v1", {"parentRefs", "hostnames", "rules"}),
}
"""Custom resources, whose schemas are not part of Kubernetes: their API, and the members of their spec."""

NOT_APPLIED = {"monitoring": {"prometheus-adapter.yaml"}, "ingress": {"admin.yaml"}, "httproute": {"admin.yaml"}}
"""Files of the components by folder: values for another chart, and the dashboard's route, which an operator enables."""

Manifest = dict[str, Any]


def applied() -> Iterator[Manifest]:
    for place in KUSTOMIZATIONS:
        folder = (DEPLOY / place).parent
        for name in load(place)["resources"]:
            yield from yaml.safe_load_all((folder / name).read_text())


MANIFESTS = list(applied())


def of(kind: str, name: str) -> Manifest:
    (found,) = [each for each in MANIFESTS if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def pods() -> list[Manifest]:
    """The templates of all pods."""
    return [each["spec"]["template"] for each in MANIFESTS if each["kind"] == "StatefulSet"]


GATEWAY = of("StatefulSet", "gateway")
POD = GATEWAY["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
ADMIN_PORT = int(load("kubernetes/gateway.yaml")["admin"]["listen"].rpartition(":")[2])


@functools.cache
def definitions(version: str) -> dict[str, Any]:
    """The schemas of a version of Kubernetes; unknown names are errors."""
    folder = importlib.resources.files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}.0-local-strict"
    known: dict[str, Any] = json.loads((folder / "_definitions.json").read_text())["$defs"]
    return known


@functools.cache
def validator(api: str, kind: str, version: str) -> Any:
    """Of objects of this kind."""
    group, _, release = api.rpartition("/")
    wanted = {"group": group, "version": release, "kind": kind}
    known = definitions(version)
    (name,) = [name for name, each in known.items() if wanted in each.get("x-kubernetes-group-version-kind", [])]
    return jsonschema_rs.validator_for({"$ref": f"#/$defs/{name}", "$defs": known})


def faults_of(manifest: Manifest, version: str) -> list[str]:
    return [
        error.message for error in validator(manifest["apiVersion"], manifest["kind"], version).iter_errors(manifest)
    ]


@pytest.mark.parametrize("version", [OLDEST, "1.37"])
@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_every_manifest_is_what_its_schema_says(manifest: Manifest, version: str) -> None:
    if check := CUSTOM.get(manifest["kind"]):
        assert (manifest["apiVersion"], set(manifest["spec"])) == check
        return
    assert faults_of(manifest, version) == []


def test_every_file_is_applied_or_says_what_it_is_for() -> None:
    for place in KUSTOMIZATIONS:
        folder, whole = (DEPLOY / place).parent, load(place)
        named = {*whole["resources"], *(name for each in whole.get("configMapGenerator", []) for name in each["files"])}
        assert named <= {path.name for path in folder.iterdir()}
        left = {path.name for path in folder.iterdir() if path.is_file()} - named - {"kustomization.yaml"}
        assert left == NOT_APPLIED.get(folder.name, set())


def test_the_kustomization_knows_the_image_and_its_version() -> None:
    whole = load(BASE)
    (image,) = whole["images"]
    assert image["name"] == CONTAINER["image"]
    assert image["newTag"] == gateway.__version__
    assert whole["namespace"] == of("Namespace", "gateway")["metadata"]["name"]


# ------------------------------------------------------------------------------------------------ what names what


def labels_of_pods() -> list[dict[str, str]]:
    return [pod["metadata"]["labels"] for pod in pods()]


def test_clients_reach_calls_alone_and_operators_have_a_service_of_their_own() -> None:
    ports = {
        name: [port["targetPort"] for port in of("Service", name)["spec"]["ports"]]
        for name in ("gateway", "gateway-admin", "gateway-pods")
    }
    assert ports == {"gateway": ["http"], "gateway-admin": ["admin"], "gateway-pods": ["http", "admin"]}
    allowed = {
        rule["ports"][0]["port"]: rule["from"][0]["namespaceSelector"]["matchLabels"]
        for rule in of("NetworkPolicy", "gateway")["spec"]["ingress"]
    }
    assert allowed == {"http": {"gateway-clients": "true"}, "admin": {"gateway-operators": "true"}}
    (endpoint,) = of("ServiceMonitor", "gateway")["spec"]["endpoints"]
    assert endpoint["port"] == "admin"


def test_upstreams_inside_the_cluster_are_reached_where_their_namespace_says_so() -> None:
    rules = of("NetworkPolicy", "gateway")["spec"]["egress"]
    assert {"to": [{"namespaceSelector": {"matchLabels": {"gateway-upstreams": "true"}}}]} in rules


def test_the_autoscaler_alone_sets_the_number_of_pods() -> None:
    """A manifest with `replicas` would reset the autoscaler's number when applied again."""
    component = load(MONITORING)
    assert "autoscaler.yaml" in component["resources"]
    (patch,) = component["patches"]
    assert patch["target"] == {"kind": "StatefulSet", "name": "gateway"}
    assert yaml.safe_load(patch["patch"]) == [{"op": "remove", "path": "/spec/replicas"}]
    assert "replicas" in GATEWAY["spec"]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_no_manifest_has_an_empty_list(manifest: Manifest) -> None:
    """A server leaves it out, so each `kubectl apply` would find a difference and write again."""
    assert ": []" not in json.dumps(manifest)


def test_the_base_names_every_component() -> None:
    names = ", ".join(sorted((DEPLOY / place).parent.name for place in COMPONENTS))
    (line,) = [line for line in (DEPLOY / BASE).read_text().splitlines() if line.startswith("components:")]
    assert line.startswith("components: []")
    assert f"[{names}]" in line
    assert {load(place)["kind"] for place in COMPONENTS} == {"Component"}


def selects_one(selector: dict[str, str]) -> bool:
    return sum(selector.items() <= labels.items() for labels in labels_of_pods()) == 1


def test_every_selector_selects_the_pods_of_one_set() -> None:
    for manifest in MANIFESTS:
        spec = manifest.get("spec", {})
        match manifest["kind"]:
            case "Service":
                assert selects_one(spec["selector"]), manifest
            case "PodDisruptionBudget":
                assert selects_one(spec["selector"]["matchLabels"]), manifest
            case "NetworkPolicy":
                assert selects_one(spec["podSelector"]["matchLabels"]), manifest
                for rule in [*spec["ingress"], *spec.get("egress", [])]:
                    for peer in (peer for peer in rule.get("from", rule.get("to", [])) if "podSelector" in peer):
                        assert selects_one(peer["podSelector"]["matchLabels"]), manifest
            case "StatefulSet":
                labels = spec["template"]["metadata"]["labels"]
                assert spec["selector"]["matchLabels"].items() <= labels.items()
                assert of("Service", spec["serviceName"])["spec"]["clusterIP"] == "None"


def test_every_port_that_is_named_is_a_port_of_the_pods() -> None:
    ports = {port["name"]: port["containerPort"] for pod in pods() for port in pod["spec"]["containers"][0]["ports"]}
    assert ports == {"http": ServerSettings().port, "admin": ADMIN_PORT, "redis": 6379}
    for manifest in MANIFESTS:
        if manifest["kind"] == "Service":
            assert all(port["targetPort"] in ports for port in manifest["spec"]["ports"])
        if manifest["kind"] == "NetworkPolicy":
            for rule in manifest["spec"]["ingress"]:
                assert all(port["port"] in ports for port in rule["ports"])
    probes = [CONTAINER[probe]["httpGet"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert [(probe["path"], probe["port"]) for probe in probes] == [
        ("/healthz", "http"), ("/readyz", "http"), ("/healthz", "http"),
    ]  # fmt: skip
    redis_port = of("Service", "redis")["spec"]["ports"][0]["port"]
    assert f"@redis:{redis_port}/" in SETTINGS
    assert any(
        port["port"] == redis_port
        for rule in of("NetworkPolicy", "gateway")["spec"]["egress"]
        for port in rule["ports"]
    )


def test_every_volume_is_there_and_every_file_is_in_one() -> None:
    maps = {each["name"]: set(each["files"]) for each in load(BASE)["configMapGenerator"]}
    for manifest in (each for each in MANIFESTS if each["kind"] == "StatefulSet"):
        spec = manifest["spec"]
        pod = spec["template"]["spec"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        claims = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
        mounted = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}
        assert set(mounted) == set(volumes) | claims
        assert all("subPath" not in mount for mount in mounted.values())  # with subPath, updates would not arrive
        assert volumes["config"]["configMap"]["name"] in maps
        assert volumes["secrets"]["secret"]["secretName"] == "gateway"
    assert maps == {"gateway": {"gateway.yaml"}, "redis": {"redis.conf"}}


def test_the_gateway_finds_its_files_and_its_secrets(tmp_path: Path) -> None:
    mounted = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    args = cli._parser().parse_args(CONTAINER["args"][1:])
    assert args.config == f"{mounted['config']}/gateway.yaml"
    made = {path.name for path in make_secrets(tmp_path / "secrets").iterdir()}
    for file in map(Path, secret_files(SETTINGS)):
        assert str(file.parent) == mounted["secrets"]
        assert file.name in made
    (workplace,) = re.findall(r"^WORKDIR (/var\S*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert mounted["journal"] == workplace
    assert Path(load("kubernetes/gateway.yaml")["store"]["journal_dir"]).parent == Path(workplace)
    (item,) = of("StatefulSet", "redis")["spec"]["template"]["spec"]["volumes"][1]["secret"]["items"]
    assert item["key"] in made


def test_the_cluster_waits_for_the_whole_drain() -> None:
    server = load("kubernetes/gateway.yaml")["server"]
    assert POD["terminationGracePeriodSeconds"] == server["drain_delay_s"] + server["drain_timeout_s"] + 10
    probe = CONTAINER["readinessProbe"]
    assert server["drain_delay_s"] > probe["periodSeconds"] * probe["failureThreshold"]


def test_a_rolling_update_and_an_emptied_node_leave_a_pod_to_serve() -> None:
    assert GATEWAY["spec"]["updateStrategy"] == {"type": "RollingUpdate"}
    scaler = of("HorizontalPodAutoscaler", "gateway")["spec"]
    budget = of("PodDisruptionBudget", "gateway")["spec"]
    assert min(GATEWAY["spec"]["replicas"], scaler["minReplicas"]) > budget["maxUnavailable"]


def test_pods_have_no_rights() -> None:
    """The namespace's pod security standard (restricted), and a read-only root file system."""
    for pod in pods():
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip
    (user,) = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    context = POD["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (
        int(user[0]),
        int(user[1]),
        int(user[1]),
    )


def test_scraping_and_scaling_go_by_what_is_there() -> None:
    monitor = of("ServiceMonitor", "gateway")["spec"]
    service = of("Service", "gateway-pods")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    others = [each for each in MANIFESTS if each["kind"] == "Service" and each is not service]
    assert not any(monitor["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items() for each in others)
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    credentials = endpoint["authorization"]["credentials"]
    assert credentials["name"] == POD["volumes"][1]["secret"]["secretName"]
    assert f"/{credentials['key']}}}" in SETTINGS

    scaler = of("HorizontalPodAutoscaler", "gateway")["spec"]
    assert (scaler["scaleTargetRef"]["kind"], scaler["scaleTargetRef"]["name"]) == ("StatefulSet", "gateway")
    (metric,) = scaler["metrics"]
    name = metric["pods"]["metric"]["name"]
    (rule,) = load("kubernetes/monitoring/prometheus-adapter.yaml")["rules"]["custom"]
    assert rule["name"]["as"] == name
    assert rule["seriesQuery"].startswith(f"{name}{{")
    assert f"| `{name}` |" in (ROOT / "docs" / "metrics.md").read_text()


# ------------------------------------------------------------------------------------------- what runs without it


def test_the_configuration_is_good_on_the_redis_of_the_manifests(tmp_path: Path) -> None:
    secrets = make_secrets(tmp_path / "secrets")
    (container,) = of("StatefulSet", "redis")["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["sh", "-c"]
    (script,) = container["args"]
    changes = {"/etc/redis/redis.conf": f"{tmp_path}/redis.conf", "/run/secrets/redis/": f"{secrets}/"}
    password = (secrets / "redis_password").read_text()
    with redis_of(tmp_path, FOLDER / "redis.conf", script, changes, password) as port:
        places = {
            "/run/secrets/gateway/": f"{secrets}/",
            "@redis:6379": f"@127.0.0.1:{port}",
            "/var/lib/gateway/journal": f"{tmp_path}/journal",
        }
        (tmp_path / "gateway.yaml").write_text(settle(SETTINGS, places))
        received = gateway_process.run("check", "--config", str(tmp_path / "gateway.yaml"))
    assert (received.returncode, received.stderr) == (0, "")
    assert "warning" not in received.stdout


def test_redis_is_set_up_alike_everywhere() -> None:
    assert (FOLDER / "redis.conf").read_text() == (DEPLOY / "compose" / "redis.conf").read_text()
