"""A plugin of pytest for google-genai's own tests through a gateway: their fixture knows Google's address alone.

The clients read no certificates, which takes most of the time of these tests; the gateway has no TLS.
"""

import os
from typing import Any

from google.genai import _replay_api_client, types

_ADDRESS = {
    "base_url": os.environ["TEST_API_BASE_URL"], "client_args": {"verify": False}, "async_client_args": {"ssl": False},
}  # fmt: skip


class GatewayClient(_replay_api_client.ReplayApiClient):
    """The client of the SDK's tests, with the gateway's address."""

    def __init__(self, *arguments: Any, http_options: Any = None, **named: Any) -> None:
        options = types.HttpOptions.model_validate(http_options or {}).model_copy(update=_ADDRESS)
        super().__init__(*arguments, http_options=options, **named)


_replay_api_client.ReplayApiClient = GatewayClient  # type: ignore[misc]
