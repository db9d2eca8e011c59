"""Stands in for the conftest.py of an official SDK's own tests, which a test runs through a gateway.

Theirs needs packages for what is not run here. Address, key and SDK come from the environment.
"""

import importlib
import os

import pytest

NAMES = {"openai": "OpenAI", "anthropic": "Anthropic"}


@pytest.fixture(scope="session")
def client(request):
    name = os.environ["TEST_SDK"]
    made = getattr(importlib.import_module(name), NAMES[name])(
        base_url=os.environ["TEST_API_BASE_URL"], api_key=os.environ["TEST_API_KEY"], max_retries=0,
        _strict_response_validation=getattr(request, "param", True),
    )  # fmt: skip
    with made:
        yield made
