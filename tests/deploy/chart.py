"""The Helm chart of deploy/helm, and what kustomize has from it: copies of files of deploy/, and rendered objects.

    python -m tests.deploy.chart        # make chart: copy the files, and render the golden files again if helm is there

tests/deploy/golden/NAME.values.yaml has values, NAME.yaml what the chart renders with them. Rendering needs helm and is
done in tests/deploy/slow/test_helm.py; tests/deploy/test_helm.py checks the golden files.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gateway.config.wings import whole_file

from .examples import DEPLOY
from .programs import MissingProgram, run

CHART = DEPLOY / "helm"
GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(path.name.removesuffix(".values.yaml") for path in GOLDEN.glob("*.values.yaml"))

COPIES = {
    "gateway.yaml": DEPLOY / "kubernetes" / "gateway.yaml",
    "redis.conf": DEPLOY / "kubernetes" / "redis.conf",
    "recording.yaml": DEPLOY / "prometheus" / "recording.yaml",
    "alerts.yaml": DEPLOY / "prometheus" / "alerts.yaml",
    "dashboard.json": DEPLOY / "grafana" / "gateway.json",
}
"""Files in the chart's files/, and their sources: Helm reads nothing outside a chart."""

MONITORING = DEPLOY / "kubernetes" / "monitoring"
RULES_HEAD = "# Written by `make chart` from deploy/prometheus.\n"

ROUTES = {"ingress": "Ingress", "httproute": "HTTPRoute"}
"""Components of deploy/kubernetes that are made from the chart, by the kind of their objects."""
ROUTES_HEAD = (
    "# Written by `make chart` from the Helm chart; kustomization.yaml beside it changes host names and paths.\n"
)

RELEASE = "gateway"
KUBERNETES = "1.30.0"

Manifest = dict[str, Any]


class ChartError(Exception):
    """Helm does not render it; the text is Helm's."""


def render(*more: str | Path) -> list[Manifest]:
    """All objects of the chart, by kind and name. Raises `ChartError`."""
    received = run("helm", "template", RELEASE, CHART, "--namespace", RELEASE, "--kube-version", KUBERNETES, *more)
    if received.returncode != 0:
        raise ChartError(received.stdout)
    return sorted(filter(None, yaml.safe_load_all(received.stdout)), key=identity)


def identity(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def values_of(case: str) -> Path:
    return GOLDEN / f"{case}.values.yaml"


@cache
def golden(case: str) -> list[Manifest]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first is ten times as fast
    return list(yaml.load_all((GOLDEN / f"{case}.yaml").read_text(), loader))


def shortened(manifests: list[Manifest]) -> Iterator[Manifest]:
    """Without the text of the rules and the dashboard, which have tests of their own."""
    for manifest in manifests:
        if manifest["kind"] == "PrometheusRule":
            names = [group["name"] for group in manifest["spec"]["groups"]]
            yield {**manifest, "spec": {"groups": names}}
        elif manifest["kind"] == "ConfigMap" and manifest["metadata"]["name"].endswith("-dashboard"):
            yield {**manifest, "data": sorted(manifest["data"])}
        else:
            yield manifest


def rules() -> str:
    """The rules of deploy/prometheus as objects of the Prometheus Operator, for kustomize."""
    objects = [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": f"gateway-{name}", "labels": {"app.kubernetes.io/name": "gateway"}},
            "spec": yaml.safe_load(COPIES[f"{name}.yaml"].read_text()),
        }
        for name in ("recording", "alerts")
    ]
    return RULES_HEAD + yaml.safe_dump_all(objects, width=120, sort_keys=False)


def route(component: str, name: str) -> str:
    """An object of such a component, as the chart renders it, without the labels of a release."""
    (found,) = [each for each in golden("routes") if identity(each) == (ROUTES[component], name)]
    metadata = {"name": name, "labels": {"app.kubernetes.io/name": "gateway"}}
    if annotations := found["metadata"].get("annotations"):
        metadata["annotations"] = annotations
    ordered = {"apiVersion": found["apiVersion"], "kind": found["kind"], "metadata": metadata, "spec": found["spec"]}
    return ROUTES_HEAD + yaml.safe_dump(ordered, width=120, sort_keys=False)


def route_files() -> dict[Path, str]:
    """The files of these components, with their text."""
    names = {"calls.yaml": "gateway", "admin.yaml": "gateway-admin"}
    folder = DEPLOY / "kubernetes"
    return {folder / each / file: route(each, name) for each in ROUTES for file, name in names.items()}


def written(manifests: list[Manifest]) -> str:
    """A golden file."""
    return yaml.safe_dump_all(shortened(manifests), width=120)


def names_of(shape: Mapping[str, Any], judged: Collection[str]) -> dict[str, Any]:
    """The names of settings in a schema of pydantic, without types: any value may be a text with `${VARIABLE}`.

    `properties` and `items` judge objects and lists alone, so a text or null in their place is accepted. A setting with
    several forms, or of a definition that is not among `judged`, is not judged within.
    """
    if "$ref" in shape:
        name = shape["$ref"].rpartition("/")[2]
        return {"$ref": f"#/definitions/{name}"} if name in judged else {}
    if "anyOf" in shape:
        found = [names for each in shape["anyOf"] if (names := names_of(each, judged))]
        return found[0] if len(found) == 1 else {}
    if "properties" in shape:
        inside = {name: names_of(each, judged) for name, each in sorted(shape["properties"].items())}
        return {"additionalProperties": False, "properties": inside}
    for keyword in ("items", "additionalProperties"):
        if isinstance(shape.get(keyword), dict) and (names := names_of(shape[keyword], judged)):
            return {keyword: names}
    return {}


def values_schema() -> str:
    """values.schema.json with the settings of the gateway's own configuration, so that helm refuses a wrong name."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    whole = whole_file().model_json_schema()
    shapes = whole["$defs"]
    judged = {name for name, shape in shapes.items() if "properties" in shape}
    schema["definitions"] = {name: names_of(shapes[name], judged) for name in sorted(judged)}
    sections = schema["properties"]["config"]["properties"]
    for name, shape in whole["properties"].items():
        described = sections.get(name, {"description": "Merged with the file's section.", "type": "object"})
        names = names_of(shape, judged)
        if "$ref" in names:  # draft 7 ignores what is beside a reference
            names = {"allOf": [names]}
        sections[name] = {"description": described["description"], "type": described["type"], **names}
    return json.dumps(schema, indent=2) + "\n"


def main() -> int:
    """Copy, and render where helm is installed; returns the exit code."""
    for name, source in COPIES.items():
        shutil.copyfile(source, CHART / "files" / name)
    (CHART / "values.schema.json").write_text(values_schema())
    (MONITORING / "rules.yaml").write_text(rules())
    shutil.copyfile(COPIES["dashboard.json"], MONITORING / "completions-gateway.json")
    try:
        for case in CASES:
            (GOLDEN / f"{case}.yaml").write_text(written(render("--values", values_of(case))))
    except MissingProgram as missing:
        print(f"The files are copied. The golden files are not rendered: {missing}")
        return 1
    for path, text in route_files().items():
        path.write_text(text)
    print(f"{len(COPIES)} files copied, {len(CASES)} golden files rendered.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
