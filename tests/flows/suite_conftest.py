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
import urllib.request

import pytest

SDK = importlib.import_module(os.environ["TEST_SDK"])
NAMES = {"openai": "OpenAI", "anthropic": "Anthropic"}
AT_LEAST = {"model": "m", "input": "Hello"}
NEEDED = {
    "/responses": AT_LEAST, "/responses/input_tokens": AT_LEAST, "/images/generations": {"model": "m"},
    "/images/edits": {"model": "m"}, "/images/variations": {"model": "m"},
}  # fmt: skip
"""By the path of a call, what the gateway requires."""
IDS = re.compile(r'"(resp|conv)((?:onse_id|_\w+))"')


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
    for kind, rest in sorted(set(IDS.findall(inspect.getsource(request.function)))):
        members = {"metadata": {"id": kind + rest}}
        make("responses", AT_LEAST | members) if kind == "resp" else make("conversations", members)


def make(what, members):
    asked = urllib.request.Request(
        f"{os.environ['TEST_API_BASE_URL']}/{what}", json.dumps(members).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['TEST_API_KEY']}"},
    )  # fmt: skip
    urllib.request.urlopen(asked).close()
