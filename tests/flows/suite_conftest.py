"""Stands in for the conftest.py of an official SDK's own tests, which a test runs through a gateway.

Theirs needs packages for what is not run here. Address, key and SDK come from the environment. Their mock server knows
every id and every model, and so their tests of Responses and images name neither: here a request without a model is
for one, and the ids of a test are made before it.
"""

import importlib
import inspect
import json
import os
import re
import sys
import types
import urllib.request

import pytest

sys.modules.setdefault("respx", types.SimpleNamespace(MockRouter=None))
"""Anthropic's tests import a mock of HTTP, which this conftest does not have as a fixture."""

SDK = importlib.import_module(os.environ["TEST_SDK"])
NAMES = {"openai": "OpenAI", "anthropic": "Anthropic"}
AT_LEAST = {"model": "m", "input": "Hello"}
NEEDED = {
    "/responses": AT_LEAST, "/responses/input_tokens": AT_LEAST, "/images/generations": {"model": "m"},
    "/images/edits": {"model": "m"}, "/images/variations": {"model": "m"},
}  # fmt: skip
"""By the path of a call, what the gateway requires."""
IDS = re.compile(r'"((?:resp|conv)(?:onse_id|_\w+))"')
OF_MODULE = {
    "test_files": re.compile(r'"(file_id)"'), "test_batches": re.compile(r'"((?:input_file|batch)_id)"'),
    "messages.test_batches": re.compile(r'"(message_batch_id)"'),
}  # fmt: skip
"""The ids that tests name, where it is not as in `IDS`, by their module."""


def completed(options):
    """The request with what the gateway requires, where the SDK's test leaves it out."""
    if options.url in NEEDED:
        options.json_data = {**NEEDED[options.url], **(options.json_data or {})}
    return options


class Synchronous(getattr(SDK, NAMES[SDK.__name__])):
    def _prepare_options(self, options):
        return completed(options)


class Asynchronous(getattr(SDK, f"Async{NAMES[SDK.__name__]}")):
    async def _prepare_options(self, options):
        return completed(options)


def settings(is_strict):
    return {
        "base_url": os.environ["TEST_API_BASE_URL"], "api_key": os.environ["TEST_API_KEY"], "max_retries": 0,
        "_strict_response_validation": is_strict,
    }  # fmt: skip


@pytest.fixture(scope="session")
def client(request):
    with Synchronous(**settings(getattr(request, "param", True))) as made:
        yield made


@pytest.fixture(scope="session")
async def async_client(request):
    asked = getattr(request, "param", True)
    is_aiohttp = isinstance(asked, dict) and asked.get("http_client") == "aiohttp"
    # Nothing here uses TLS, and reading the certificates anew for each client takes most of its time.
    http_client = (SDK.DefaultAioHttpClient if is_aiohttp else SDK.DefaultAsyncHttpxClient)(verify=False)
    async with Asynchronous(http_client=http_client, **settings(asked is not False)) as made:
        yield made


@pytest.fixture(autouse=True)
def ids(request):
    """Every id that the test names belongs to its key."""
    pattern = OF_MODULE.get(request.module.__name__.removeprefix("tests.api_resources."), IDS)
    for each in sorted(set(pattern.findall(inspect.getsource(request.function)))):
        make(each)


LINE = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": AT_LEAST}
MESSAGE = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]}
OF_BATCH = {"endpoint": "/v1/responses", "completion_window": "24h"}


def make(wanted):
    """Make what has this id: the upstream takes it from the metadata, or from what else the request has."""
    named = {"metadata": {"id": wanted}}
    if wanted.startswith("resp"):
        post("responses", AT_LEAST | named)
    elif wanted.startswith("conv"):
        post("conversations", named)
    elif wanted in ("file_id", "input_file_id"):
        upload(wanted)
    elif wanted == "batch_id":
        upload("file_of_batch")
        post("batches", {**OF_BATCH, "input_file_id": "file_of_batch", **named})
    elif wanted == "message_batch_id":
        post("v1/messages/batches", {"requests": [{"custom_id": wanted, "params": MESSAGE}]})


def post(path, members):
    send(path, json.dumps(members), "application/json")


def upload(name):
    """A file for batches with this name."""
    head = "Content-Disposition: form-data; name="
    parts = [f'{head}"purpose"\r\n\r\nbatch', f'{head}"file"; filename="{name}"\r\n\r\n{json.dumps(LINE)}']
    body = "".join([f"--b\r\n{part}\r\n" for part in parts])
    send("files", f"{body}--b--\r\n", "multipart/form-data; boundary=b")


def send(path, body, content_type):
    asked = urllib.request.Request(
        f"{os.environ['TEST_API_BASE_URL']}/{path}", body.encode(),
        {"Content-Type": content_type, "Authorization": f"Bearer {os.environ['TEST_API_KEY']}"},
    )  # fmt: skip
    urllib.request.urlopen(asked).close()
