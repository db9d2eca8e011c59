"""A client with the key of a provider gets advice; one with a key of the gateway that is wrong gets none."""

from __future__ import annotations

import pytest

from gateway.api.auth import admit
from gateway.errors import Unauthorized


@pytest.mark.parametrize("secret", ["sk-proj-0123456789abcdef", "sk-ant-0123456789abcdef", "gsk_0123456789abcdef01234"])
def test_the_key_of_a_provider_gets_advice(secret: str) -> None:
    with pytest.raises(Unauthorized, match="begin with sk-gw-") as raised:
        admit(None, secret, now=0, remote=None)
    assert secret not in raised.value.message


@pytest.mark.parametrize("secret", ["sk-gw-0123456789abcdef", "something-else-that-is-wrong"])
def test_another_wrong_key_gets_none(secret: str) -> None:
    with pytest.raises(Unauthorized, match=r"Incorrect API key provided: [^ ]+\.$"):
        admit(None, secret, now=0, remote=None)
