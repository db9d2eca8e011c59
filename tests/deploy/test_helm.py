"""The Helm chart without helm: its values and their schema, its copies, and what it renders, from the golden files.

tests/deploy/slow/test_helm.py checks that helm renders the golden files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

import gateway
from gateway.config import Config, build, resolve
from gateway.config.diff import NEEDS_RESTART
from gateway.config.sections import Timeouts
from gateway.config.wings import whole_file
from gateway.web.openapi.document import OPERATIONS

from .chart import (
    CASES,
    CHART,
    COPIES,
    MONITORING,
    RELEASE,
    Manifest,
    golden,
    identity,
    route_files,
    rules,
    values_of,
    values_schema,
)
from .examples import DEPLOY, load
from .slow import test_kubernetes as kustomize

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
OBJECTS = [pytest.param(each, id="-".join((case, *identity(each)))) for case in CASES for each in golden(case)]


def of(case: str, kind: str, name: str) -> Manifest:
    (found,) = [each for each in golden(case) if identity(each) == (kind, name)]
    return found


def kinds(case: str) -> set[str]:
    return {manifest["kind"] for manifest in golden(case)}


def config_of(case: str) -> Config:
    text = of(case, "ConfigMap", "gateway")["data"]["gateway.yaml"]
    return build(resolve(text, {}, lambda path: f"a-secret-for-the-file-{path.rpartition('/')[2]}").values)


# ------------------------------------------------------------------------------------------------ values and copies


@pytest.mark.parametrize("name", COPIES)
def test_the_chart_holds_copies_of_the_files_beside_it(name: str) -> None:
    copied = (CHART / "files" / name).read_text()
    assert copied == COPIES[name].read_text(), f"files/{name} differs from its source: run `make chart`"


def test_kustomize_has_the_same_rules_and_dashboard() -> None:
    assert (MONITORING / "rules.yaml").read_text() == rules(), "run `make chart`"
    assert (MONITORING / "completions-gateway.json").read_text() == COPIES["dashboard.json"].read_text(), "`make chart`"


@pytest.mark.parametrize(
    ("path", "text"),
    [pytest.param(*each, id=f"{each[0].parent.name}-{each[0].stem}") for each in route_files().items()],
)
def test_kustomize_has_the_charts_ingress_and_route(path: Path, text: str) -> None:
    assert path.read_text() == text, "run `make chart`"


def test_the_chart_holds_no_other_file() -> None:
    assert {path.name for path in (CHART / "files").iterdir()} == set(COPIES)


def test_the_version_is_the_packages() -> None:
    assert load("helm/Chart.yaml")["appVersion"] == gateway.__version__


def test_the_schema_describes_every_value() -> None:
    jsonschema_rs.validator_for(SCHEMA)
    assert undescribed(VALUES, SCHEMA) == []


def undescribed(values: dict[str, Any], schema: dict[str, Any], path: str = "") -> list[str]:
    found = []
    for name, value in values.items():
        here = f"{path}.{name}".lstrip(".")
        part = schema.get("properties", {}).get(name)
        if part is None or not part.get("description"):
            found.append(here)
        elif isinstance(value, dict) and "properties" in part:
            found += undescribed(value, part, here)
    return found


def test_the_schema_has_the_settings_of_the_gateway() -> None:
    assert set(SCHEMA["properties"]["config"]["properties"]) == set(whole_file().model_fields)
    assert (CHART / "values.schema.json").read_text() == values_schema(), "run `make chart`"


@pytest.mark.parametrize("path", [*DEPLOY.parent.glob("examples/*.yaml"), *DEPLOY.parent.glob("config/gateway.yaml")])
def test_every_good_configuration_is_accepted(path: Path) -> None:
    given = {"config": yaml.safe_load(path.read_text())}
    assert [error.message for error in jsonschema_rs.validator_for(SCHEMA).iter_errors({**VALUES, **given})] == []


@pytest.mark.parametrize("case", CASES)
def test_good_values_are_accepted(case: str) -> None:
    given = yaml.safe_load(values_of(case).read_text()) or {}
    assert [error.message for error in jsonschema_rs.validator_for(SCHEMA).iter_errors({**VALUES, **given})] == []


@pytest.mark.parametrize(
    "bad",
    [
        {"replica": 3},
        {"replicas": "3"},
        {"config": {"upstream": {}}},
        {"config": {"server": {"prot": 1}}},
        {"config": {"upstreams": {"main": {"base_urls": "https://api.example.com/v1"}}}},
        {"config": {"models": {"a": {"routes": [{"upstreams": "main"}]}}}},
        {"config": {"keys": [{"id": "a", "quotas": [{"request": 1, "per": "day"}]}]}},
        {"config": "server: {}"},
        {"image": {"repository": "gateway", "digest": "sha256:0"}},
        {"ingress": {"paths": ["v1"]}},
        {"adminIngress": {"paths": ["/metrics"]}},
        {"networkPolicy": {"dns": []}},
        {"image": {"pullPolicy": "always"}},
        {"journal": {"size": "5GB"}},
        {"service": {"port": 0}},
        {"service": {"type": "ExternalName"}},
        {"ingress": {"hosts": []}},
        {"ingress": {"hosts": ["https://llm.example.com"]}},
        {"httpRoute": {"timeout": "11 minutes"}},
        {"autoscaling": {"minReplicas": 0}},
        {"maxUnavailable": "a third"},
        {"serviceMonitor": {"interval": 15}},
    ],
    ids=str,
)
def test_bad_values_are_refused(bad: dict[str, Any]) -> None:
    assert not jsonschema_rs.is_valid(SCHEMA, bad)


def test_the_pods_restart_for_the_settings_that_need_it() -> None:
    """The annotation checksum/restart is of these settings, and of no other."""
    helpers = (CHART / "templates" / "_helpers.tpl").read_text()
    text = helpers.partition('define "gateway.restart"')[2].partition("sha256sum")[0]
    (server,) = re.findall(r"pick \$config\.server (.*) -", text)
    expected = {("server", name) for name in re.findall(r'"(\w+)"', server)}
    expected |= {tuple(path.split(".")) for path in re.findall(r"\$config\.([\w.]+)", text) if path != "server"}
    assert expected == set(NEEDS_RESTART)


# -------------------------------------------------------------------------------------------------------- rendered


@pytest.mark.parametrize("version", [kustomize.OLDEST, "1.37"])
@pytest.mark.parametrize("manifest", OBJECTS)
def test_every_object_is_what_its_schema_says(manifest: Manifest, version: str) -> None:
    if check := CUSTOM.get(manifest["kind"]):
        assert manifest["apiVersion"] == check[0]
        assert set(manifest["spec"]) == check[1]
        return
    if manifest["metadata"]["name"].endswith("-dashboard"):
        assert manifest["data"] == ["completions-gateway.json"]
        return
    assert kustomize.faults_of(manifest, version) == []


CUSTOM = {
    "ServiceMonitor": ("monitoring.coreos.com/v1", {"jobLabel", "selector", "endpoints"}),
    "PrometheusRule": ("monitoring.coreos.com/v1", {"groups"}),
    "HTTPRoute": ("gateway.networking.k8s.io/v1", {"parentRefs", "hostnames", "rules"}),
}
"""Kinds whose schemas are not Kubernetes' own: their API, and the members of their spec."""


@pytest.mark.parametrize("case", CASES)
def test_the_configuration_is_a_good_one(case: str) -> None:
    assert config_of(case).admin.address


@pytest.mark.parametrize("case", CASES)
def test_ports_times_and_selectors_fit_the_configuration(case: str) -> None:
    config = config_of(case)
    template = of(case, "StatefulSet", "gateway")["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert config.admin.address is not None
    ports = {"http": config.server.port, "admin": config.admin.address[1]}
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == ports
    services = {each["metadata"]["name"]: each["spec"] for each in golden(case) if each["kind"] == "Service"}
    assert {port["name"]: port["port"] for port in services["gateway-pods"]["ports"]} == ports
    assert [port["targetPort"] for port in services["gateway"]["ports"]] == ["http"]
    assert [port["targetPort"] for port in services["gateway-admin"]["ports"]] == ["admin"]
    for name in ("gateway", "gateway-admin", "gateway-pods"):
        assert services[name]["selector"].items() <= template["metadata"]["labels"].items()
    waited = config.server.drain_delay_s + config.server.drain_timeout_s + 10
    assert template["spec"]["terminationGracePeriodSeconds"] == waited


CALLS = ["/v1", "/v1beta", "/v2/rerank", "/rerank", "/openai"]
OPERATORS = ["/", "/admin", "/dashboard", "/docs", "/openapi.json"]
"""Of the admin API, the dashboard and the reference. / is exact: /metrics and the health checks are not published."""

Route = tuple[str, str, str]
"""A type, a path, and the Service that it leads to."""


def routes(case: str, kind: str, name: str) -> list[Route]:
    """What an Ingress or an HTTPRoute publishes, for each of its hosts."""
    spec = of(case, kind, name)["spec"]
    if kind == "Ingress":
        (every,) = {tuple(ingress_route(case, path) for path in rule["http"]["paths"]) for rule in spec["rules"]}
        return list(every)
    found = []
    for rule in spec["rules"]:
        (backend,) = rule["backendRefs"]
        assert backend["port"] in [port["port"] for port in ports(case, backend["name"])]
        found += [(match["path"]["type"], match["path"]["value"], backend["name"]) for match in rule["matches"]]
    return found


def ingress_route(case: str, path: Manifest) -> Route:
    service = path["backend"]["service"]
    assert service["port"]["name"] in [port["name"] for port in ports(case, service["name"])]
    return path["pathType"], path["path"], service["name"]


def ports(case: str, service: str) -> list[Manifest]:
    found: list[Manifest] = of(case, "Service", service)["spec"]["ports"]
    return found


@pytest.mark.parametrize(
    ("case", "kind", "prefix", "more"),
    [
        ("ingress", "Ingress", "Prefix", ["/kling"]),
        ("monitored", "HTTPRoute", "PathPrefix", []),
        ("routes", "Ingress", "Prefix", []),
        ("routes", "HTTPRoute", "PathPrefix", []),
    ],
)
def test_a_public_route_leads_to_calls_of_every_format_and_to_nothing_else(
    case: str, kind: str, prefix: str, more: list[str]
) -> None:
    """`more` are the prefixes of the case's passthrough rows."""
    assert routes(case, kind, "gateway") == [(prefix, path, "gateway") for path in (*CALLS, *more)]


@pytest.mark.parametrize(
    ("case", "kind", "prefix"),
    [
        ("ingress", "Ingress", "Prefix"),
        ("monitored", "HTTPRoute", "PathPrefix"),
        ("routes", "Ingress", "Prefix"),
        ("routes", "HTTPRoute", "PathPrefix"),
    ],
)
def test_the_dashboard_has_a_host_name_of_its_own_where_the_values_say_so(case: str, kind: str, prefix: str) -> None:
    inside = [("Exact" if path == "/" else prefix, path, "gateway-admin") for path in OPERATORS]
    assert routes(case, kind, "gateway-admin") == [*inside, (prefix, "/v1", "gateway")]


def test_the_published_prefixes_are_those_of_the_gateways_operations() -> None:
    assert VALUES["ingress"]["paths"] == VALUES["httpRoute"]["paths"] == CALLS
    for (_, path), operation in OPERATIONS.items():
        is_of_calls = operation.caller == "key" and not path.startswith("/admin/")
        assert is_of_calls <= is_below(path, CALLS), path
        is_of_operators = path.startswith(("/admin/", "/dashboard", "/docs")) or path in ("/", "/openapi.json")
        assert is_of_operators == (path == "/" or is_below(path, OPERATORS[1:])), path
        assert is_of_operators + is_below(path, CALLS) <= 1, path


def is_below(path: str, prefixes: list[str]) -> bool:
    """As Kubernetes compares them: by whole segments."""
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in prefixes)


def test_an_image_is_named_by_its_digest_where_there_is_one() -> None:
    (container,) = of("monitored", "StatefulSet", "gateway")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example.com/completions-gateway@sha256:{'1' * 64}"
    (container,) = of("ingress", "StatefulSet", "gateway")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com/team/gateway:0.2.0-tokens"


def test_proxies_wait_longer_than_the_gateway_for_its_upstreams() -> None:
    annotations = VALUES["ingress"]["annotations"]
    for name in ("read", "send"):
        assert float(annotations[f"nginx.ingress.kubernetes.io/proxy-{name}-timeout"]) > Timeouts().total_s
    assert float(VALUES["httpRoute"]["timeout"].removesuffix("s")) > Timeouts().total_s


@pytest.mark.parametrize("case", CASES)
def test_the_number_of_pods_has_one_owner(case: str) -> None:
    has_scaler = "HorizontalPodAutoscaler" in kinds(case)
    assert has_scaler == (case == "monitored")
    assert ("replicas" in of(case, "StatefulSet", "gateway")["spec"]) != has_scaler


def test_what_is_switched_off_is_not_there() -> None:
    assert kinds("default") == {"ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Service", "StatefulSet"}
    assert "NetworkPolicy" not in kinds("own-redis")
    for case in ("own-redis", "one-node"):
        assert "redis" not in {name for _, name in map(identity, golden(case))}
    assert "volumeClaimTemplates" not in of("own-redis", "StatefulSet", "gateway")["spec"]
    assert config_of("own-redis").store.url.endswith("@redis.example.com:6380/2")


def test_sections_of_the_values_replace_or_join_those_of_the_file() -> None:
    config, given = config_of("ingress"), config_of("default")
    assert list(config.models) == ["llama-3.1-8b"]
    assert (sorted(config.upstreams), config.keys) == (["tasks", "vllm"], ())
    assert (config.server.workers, config.server.trusted_proxies) == (4, given.server.trusted_proxies)
    assert config.admin.token == given.admin.token


def test_redis_is_the_releases_own() -> None:
    assert "@gateway-redis:6379/" in config_of("default").store.url
    assert of("default", "Service", "gateway-redis")["spec"]["ports"][0]["port"] == 6379


def test_upstreams_in_the_cluster_are_allowed_where_the_values_say() -> None:
    (rule,) = [
        rule
        for rule in of("ingress", "NetworkPolicy", "gateway")["spec"]["egress"]
        if "ports" not in rule
    ]  # fmt: skip
    assert rule["to"] == yaml.safe_load(values_of("ingress").read_text())["networkPolicy"]["upstreams"]


# ------------------------------------------------------------------------------------------------------- kustomize


def test_the_chart_and_kustomize_make_the_same_objects() -> None:
    """But for the namespace, which Helm makes by --create-namespace, labels, and the names of Redis."""
    ours = {identity(each): each for each in map(plain, golden("default"))}
    theirs = {identity(each): each for each in map(plain, kustomized())}
    assert sorted(ours) == sorted(theirs)
    for name, manifest in ours.items():
        assert manifest == theirs[name], name


def kustomized() -> Iterator[Manifest]:
    """What deploy/kubernetes makes, without monitoring/."""
    whole = load("kubernetes/kustomization.yaml")
    for name in whole["resources"]:
        for manifest in yaml.safe_load_all((kustomize.FOLDER / name).read_text()):
            if manifest["kind"] != "Namespace":
                yield manifest
    for made in whole["configMapGenerator"]:
        data = {name: (kustomize.FOLDER / name).read_text() for name in made["files"]}
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": made["name"]}, "data": data}


def plain(manifest: Manifest) -> Manifest:
    """Without what may differ."""
    (image,) = load("kubernetes/kustomization.yaml")["images"]
    text = json.dumps(manifest).replace("gateway-redis", "redis")
    text = text.replace(f'"image": "{image["name"]}"', f'"image": "{image["newName"]}:{image["newTag"]}"')
    shown: Manifest = without_labels(json.loads(text))
    if manifest["kind"] == "ConfigMap":
        shown["data"] = {name: yaml.safe_load(text) for name, text in shown["data"].items()}
    return shown


def without_labels(value: Any) -> Any:
    """Labels that every release has, those of the objects themselves, and the restart's annotation."""
    extra = ("app.kubernetes.io/instance", "checksum/restart")
    if isinstance(value, dict):
        shown = {name: without_labels(part) for name, part in value.items() if name not in extra}
        if "name" in shown and "labels" in shown:
            del shown["labels"]
        if shown.get("annotations") == {}:
            del shown["annotations"]
        return shown
    return [without_labels(part) for part in value] if isinstance(value, list) else value


def test_the_autoscaler_and_the_scraping_are_those_of_kustomize() -> None:
    scaler, theirs = (
        of("monitored", "HorizontalPodAutoscaler", "gateway")["spec"],
        kustomize.of("HorizontalPodAutoscaler", "gateway")["spec"],
    )
    assert VALUES["autoscaling"] == {
        "enabled": False, "minReplicas": theirs["minReplicas"], "maxReplicas": theirs["maxReplicas"],
        "callsPerPod": int(theirs["metrics"][0]["pods"]["target"]["averageValue"]),
    }  # fmt: skip
    for name in ("scaleTargetRef", "behavior"):
        assert scaler[name] == theirs[name]
    monitor = of("monitored", "ServiceMonitor", "gateway")["spec"]
    assert monitor["endpoints"] == kustomize.of("ServiceMonitor", "gateway")["spec"]["endpoints"]
    labels = of("monitored", "Service", "gateway-pods")["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert re.match("gateway.*", labels[monitor["jobLabel"]])  # the alerts' jobs


def test_groups_of_rules_have_names_of_their_own_in_each_object() -> None:
    """The operator refuses an object with two groups of one name."""
    for name in ("recording", "alerts"):
        groups = of("monitored", "PrometheusRule", f"{RELEASE}-{name}")["spec"]["groups"]
        assert len(set(groups)) == len(groups) > 0
