"""`gateway init` for Azure, Bedrock and Vertex AI: addresses, and files that `check` accepts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gateway import cli
from gateway.commands.common import UsageError
from gateway.config import build, resolve
from gateway.wings.clouds import first_file as clouds
from gateway.wings.init import run
from tests.fakes.scripted import Scripted, answer, ok_json

NAMED = (
    "AZURE_", "AWS_", "GOOGLE_", "CLOUD_ML_", "ANTHROPIC_VERTEX_",
)  # fmt: skip


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder, and no cloud in the environment."""
    for name in [name for name in os.environ if name.startswith(NAMED)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("url", "cloud"),
    [
        ("https://eu.openai.azure.com", "azure"),
        ("https://eu.services.ai.azure.com/openai/v1", "azure"),
        ("https://bedrock-runtime.us-west-2.amazonaws.com", "bedrock"),
        ("https://europe-west1-aiplatform.googleapis.com/v1/projects/p/locations/europe-west1", "vertex"),
        ("https://api.openai.com/v1", None),
        ("https://bedrock-mantle.us-west-2.api.aws/v1", None),  # has /models, as others do
    ],
)
def test_a_cloud_is_known_by_its_address(url: str, cloud: str | None) -> None:
    assert clouds.cloud_of(url) == cloud


@pytest.mark.parametrize(
    ("cloud", "environment", "url"),
    [
        ("azure", {"AZURE_OPENAI_ENDPOINT": "https://eu.openai.azure.com/"}, "https://eu.openai.azure.com/"),
        ("bedrock", {"AWS_DEFAULT_REGION": "eu-west-1"}, "https://bedrock-runtime.eu-west-1.amazonaws.com"),
        ("vertex", {"GOOGLE_CLOUD_PROJECT": "p", "GOOGLE_CLOUD_LOCATION": "global"},
         "https://aiplatform.googleapis.com/v1/projects/p/locations/global"),
        ("vertex", {"GOOGLE_CLOUD_PROJECT": "p", "CLOUD_ML_REGION": "us-east5"},
         "https://us-east5-aiplatform.googleapis.com/v1/projects/p/locations/us-east5"),
        ("vertex", {"GOOGLE_CLOUD_PROJECT": "p", "CLOUD_ML_REGION": "eu"},
         "https://aiplatform.eu.rep.googleapis.com/v1/projects/p/locations/eu"),
    ],
)  # fmt: skip
def test_the_name_of_a_cloud_is_an_address(cloud: str, environment: dict[str, str], url: str) -> None:
    assert clouds.address_of(cloud, None, environment) == url
    assert clouds.cloud_of(url) == cloud
    assert clouds.address_of(cloud, lambda question, default: default, environment) == url


@pytest.mark.parametrize(
    ("cloud", "missing"),
    [("azure", "AZURE_OPENAI_ENDPOINT"), ("bedrock", "AWS_REGION or AWS_DEFAULT_REGION"),
     ("vertex", "GOOGLE_CLOUD_PROJECT or ANTHROPIC_VERTEX_PROJECT_ID")],
)  # fmt: skip
def test_a_missing_part_is_named(cloud: str, missing: str) -> None:
    with pytest.raises(UsageError, match=f"{cloud} needs {missing} in the environment"):
        clouds.address_of(cloud, None, {})


ADDRESSES = {
    "azure": "https://eu.openai.azure.com",
    "bedrock": "https://bedrock-runtime.us-west-2.amazonaws.com",
    "vertex": "https://aiplatform.googleapis.com/v1/projects/p/locations/global",
}


@pytest.mark.parametrize("variable", [None, "A_KEY"])
@pytest.mark.parametrize("cloud", ADDRESSES)
def test_the_file_is_a_good_one(cloud: str, variable: str | None) -> None:
    upstreams, models = clouds.upstreams_of(cloud, ADDRESSES[cloud], variable)
    text = run._framed(clouds.shown(upstreams), models)
    config = build(resolve(text, {"A_KEY": "a-key-of-theirs"}).values)
    assert config.upstreams.keys() == upstreams.keys()
    assert all((each.api_key is None) == (variable is None) for each in config.upstreams.values())
    assert {each.timeouts.head_s for each in config.upstreams.values()} == {300}
    assert all(model.max_output_tokens for model in config.models.values())


def init(*arguments: str) -> int:
    return cli.main(["init", *arguments])


SONNET = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"


def test_a_good_bedrock_is_written_with_its_credentials_tried(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAFAKE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    with Scripted(prefix="", always=ok_json({"modelSummaries": []})) as control:
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK", control.url)
        assert init("--url", "bedrock") == 0
    said = capsys.readouterr()
    assert said.err.startswith(
        "Asking bedrock-runtime.eu-west-1.amazonaws.com ...\n  answered   upstream bedrock, auth"
    )
    assert "gateway.yaml is written" in said.out
    assert "a-secret" not in (here / "gateway.yaml").read_text() + said.out + said.err
    assert cli.main(["check", "--config", "gateway.yaml"]) == 0, capsys.readouterr().err
    assert "bedrock (auth aws in eu-west-1, paths of bedrock)" in capsys.readouterr().out


def test_what_is_missing_is_said_and_nothing_is_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init("--url", ADDRESSES["bedrock"]) == 1
    said = capsys.readouterr().err
    assert "upstream bedrock, auth aws: botocore finds no credentials" in said
    assert "write the file all the same: --anyway" in said
    assert not (here / "gateway.yaml").exists()
    assert init("--url", ADDRESSES["bedrock"], "--anyway") == 0
    assert "auth: aws" in (here / "gateway.yaml").read_text()


def test_a_refused_key_is_said(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "a-key-of-bedrock")
    body = json.dumps({"message": "no"}).encode()
    refused = answer(body, 403, [("x-amzn-errortype", "UnrecognizedClientException")])
    with Scripted(prefix="", always=refused) as control:
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK", control.url)
        assert init("--url", ADDRESSES["bedrock"]) == 1
    assert "UnrecognizedClientException: the API key is refused" in capsys.readouterr().err
    assert control.requests[0].headers["authorization"] == "Bearer a-key-of-bedrock"


def test_a_package_that_is_missing_is_said_with_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gateway.wings.clouds.auth.find_spec", lambda name: None)
    assert init("--url", ADDRESSES["vertex"]) == 1
    assert "pip install 'completions-gateway[google]'" in capsys.readouterr().err


def test_on_a_terminal_it_asks_for_the_parts(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"Address": "azure", "Address of the resource": ADDRESSES["azure"], "Name of the env": "MY_KEY",
               "Write the file anyway": "yes"}  # fmt: skip
    asked: list[str] = []

    def reply(question: str) -> str:
        asked.append(question)
        known = [start for start in answers if question.startswith(start)]
        return answers[max(known, key=len)] if known else "-"

    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", reply)
    assert init() == 0
    assert "key_header: api-key" in (here / "gateway.yaml").read_text()
    assert asked[0] == "Address of the upstream's API, or azure or bedrock or vertex [https://api.openai.com/v1]: "
