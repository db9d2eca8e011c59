"""google-genai's own tests of Gemini's API, out of its package, through a gateway to the simulator.

They are made for Google's models: in their mode `api` some want words that only a model knows, or refusals that are
Google's own. What fails here is named with the reason. Not run: tests of Vertex AI, of another address, and of files
that need recordings or pictures, which the package does not have.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from urllib.request import urlopen

import google.genai
import pytest

from tests.conftest import StartsGateways, StartsProcesses
from tests.flows.gateway_process import SIMULATOR, Gateway, secret
from tests.flows.test_gemini import gemini_model, gemini_settings

PACKAGE = Path(google.genai.__file__).parent
PLUGINS = Path(__file__).parents[1]
MISSING = (
    "google.png", "google.jpg", "voice_sample.wav", "google_homepage.png", "story.pdf", "animal.mp4", "checkerboard.png"
)  # fmt: skip
"""Read when the files of tests are imported; their content goes to the upstream as it is."""
WITHIN_S = 420.0
pytestmark = pytest.mark.timeout(480)

FILES = (
    "models/test_generate_content.py", "models/test_generate_content_tools.py",
    "models/test_generate_content_thought.py", "models/test_generate_content_config_zero_value.py",
    "models/test_count_tokens.py", "models/test_embed_content.py", "models/test_list.py", "chats/test_get_history.py",
)  # fmt: skip
CHOSEN = "not True- and not custom_url"
"""`True-` is Vertex AI in the names of tests; `custom_url` calls Google's own address."""

_WORDS = "wants words that a real model would say"
_REFUSAL = "wants a refusal that is Google's own"
_CHOICE = "wants another choice of the schema, or more items, than the simulator makes"
_ABSENT = "wants what the simulator does not have"
_TUNED = "tuned models are not served"

FAILING: dict[str, tuple[str, ...]] = {
    _WORDS: (
        "test_function", "test_multiple_strings", "test_multiple_parts", "test_multiple_function_calls",
        "test_2_function", "test_2_function_async", "test_automatic_function_calling_with_customized_math_rule",
        "test_automatic_function_calling", "test_automatic_function_calling_with_async_function",
        "test_automatic_function_calling_float_without_decimal", "test_automatic_function_calling_with_pydantic_model",
        "test_automatic_function_calling_with_pydantic_model_in_list_type",
        "test_automatic_function_calling_with_union_operator_return_type",
        "test_automatic_function_calling_with_parameterized_generic_union_type",
        "test_automatic_function_calling_with_coroutine_function_async", "test_automatic_function_calling_async",
        "test_automatic_function_calling_async_with_pydantic_model",
        "test_automatic_function_calling_async_with_async_function", "test_class_method_tools",
    ),
    _REFUSAL: (
        "test_llama", "test_speech_error_with_speech_config_and_multi_speech_config",
        "test_list_of_enum_schema_with_enum_mime_type", "test_file_search_non_existent_file_search_store",
        "test_function_google_search", "test_logprobs_zero", "test_logprobs_zero_with_response_logprobs_true",
        "test_extra_body",
    ),
    _CHOICE: (
        "test_pydantic_schema_with_none", "test_schema_with_union_type_all_py_versions",
        "test_list_of_pydantic_schema", "test_nested_list_of_pydantic_schema",
        "test_list_of_pydantic_schema_with_dict_config", "test_pydantic_schema_with_union_type",
        "test_pydantic_schema_with_union_type_all_py_versions", "test_union_of_pydantic_schema",
        "test_union_of_pydantic_schema_all_py_versions", "test_json_schema_with_any_of", "test_schema_with_any_of",
        "test_response_json_schema_with_one_of", "test_2_function_with_history", "test_2_function_with_history_async",
        "test_automatic_function_calling_async_with_async_function_stream", "test_stream_afc_thoughts",
    ),
    _ABSENT: (
        "test_enum_schema_with_enum_mime_type", "test_non_string_enum_schema_with_enum_mime_type",
        "test_json_schema_with_streaming", "test_pydantic_schema_with_streaming", "test_usage_metadata_part_types",
        "test_code_execution_tool", "test_thinking_budget",
    ),
    _TUNED: ("test_tuned_models", "test_tuned_models_with_filter", "test_tuned_models_async_pager"),
}  # fmt: skip


def run(gateway: Gateway, folder: Path) -> dict[str, str | None]:
    """Every test that was run by its name, with the message of its failure; None: it passed."""
    copy = folder / "google/genai"
    shutil.copytree(PACKAGE, copy)
    (copy / "tests/data").mkdir()
    for name in MISSING:
        (copy / "tests/data" / name).write_bytes(b"data")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", ".", "--mode", "api",
         "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "google_suite_plugin", "-W", "ignore",
         "-o", "asyncio_mode=auto", "-o", "consider_namespace_packages=true", "--junitxml", "report.xml",
         "-k", CHOSEN, *[str(copy / "tests" / name) for name in FILES]],
        cwd=folder, capture_output=True, text=True, timeout=WITHIN_S, check=False,
        env={
            **os.environ, "PYTHONPATH": f"{folder}:{PLUGINS}", "PYTHONHASHSEED": "0", "GOOGLE_API_KEY": secret("alice"),
            "GOOGLE_GENAI_REPLAYS_DIRECTORY": str(folder / "replays"), "TEST_API_BASE_URL": gateway.url,
        },
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    cases = ET.parse(folder / "report.xml").iter("testcase")
    return dict(_outcome(case) for case in cases if case.find("skipped") is None)


def _outcome(case: ET.Element) -> tuple[str, str | None]:
    failure = case.find("failure") if case.find("failure") is not None else case.find("error")
    name = f"{case.get('classname')}::{case.get('name')}".removeprefix("google.genai.tests.").partition("[")[0]
    return name, None if failure is None else str(failure.get("message"))


def test_the_sdk_s_own_tests_pass(start_gateway: StartsGateways, process: StartsProcesses, tmp_path: Path) -> None:
    url = process(SIMULATOR, "--port", "0").wait_for(r"(http://127\.0\.0\.1:\d+)")[1]
    simulated = gemini_model(routes=[{"upstream": "main", "model": "gemini-2.5-flash"}], max_attempts=1)
    embedding = {"endpoints": ["embed_content"], "routes": [{"upstream": "main", "model": "gemini-embedding-001"}]}
    models = {"*": simulated, "*embedding*": embedding}
    gateway = start_gateway(gemini_settings(f"{url}/v1beta", models=models, aliases={}))
    outcomes = run(gateway, tmp_path)
    failing = {name for names in FAILING.values() for name in names}
    wrong = {
        name: failure
        for name, failure in outcomes.items() if (name.partition("::")[2] in failing) is (failure is None)
    }  # fmt: skip
    assert not wrong
    assert len(outcomes) - len(failing) > 180
    with urlopen(f"{url}/simulator/ledger", timeout=10) as answer:
        billed = json.load(answer)["totals"]
    (row,) = gateway.usage(group_by="")
    assert row["prompt_tokens"] == billed["prompt_tokens"] > 0
    assert row["completion_tokens"] == billed["completion_tokens"] > 0
