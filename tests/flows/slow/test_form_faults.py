"""What fails while a form is on its way to an upstream costs nothing, and another route gets the whole form."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.conftest import StartsGateways
from tests.fakes.forms import BOUNDARY, form, wav
from tests.fakes.scripted import Behaviour, Scripted, Wire, ok_json
from tests.flows.gateway_process import Gateway, eventually, key, secret, settings

BODY = form(("model", "m"), ("file", wav(600, 16_000)))
"""19 MB: more than the buffers of sockets hold."""


async def resets(wire: Wire) -> None:
    await asyncio.sleep(0.1)
    wire.reset()


async def never_reads(wire: Wire) -> None:
    await asyncio.sleep(20)


def gateway_of(start_shared_gateway: StartsGateways, first: Scripted, second: Scripted) -> Gateway:
    routes = [{"upstream": "main", "priority": 1}, {"upstream": "other", "priority": 2}]
    model: dict[str, Any] = {"endpoints": ["transcriptions"], "routes": routes, "price": {"audio_per_minute": 0.06}}
    upstreams = {"other": {"base_url": second.url, "api_key": "sk-other-upstream-key"}}
    keys = [key("alice", quotas=[{"usd": 10, "per": "month"}])]
    return start_shared_gateway(settings(first.url, models={"m": model}, upstreams=upstreams, keys=keys))


def head() -> bytes:
    lines = [
        "POST /v1/audio/transcriptions HTTP/1.1", "Host: gateway", f"Authorization: Bearer {secret('alice')}",
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}", f"Content-Length: {len(BODY)}", "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode()


def used(gateway: Gateway) -> tuple[float, float]:
    (row,) = [each for each in gateway.admin("quotas", key="alice").json["data"] if each["unit"] == "usd"]
    return row["used"], row["reserved"]


def test_another_route_gets_the_whole_form_after_a_cut_inside_it(start_shared_gateway: StartsGateways) -> None:
    answer: Behaviour = ok_json({"text": "Hi", "usage": {"type": "duration", "seconds": 600}})
    with Scripted(resets, reads_body=False) as first, Scripted(answer) as second:
        gateway = gateway_of(start_shared_gateway, first, second)
        with gateway.connect() as client:
            client.send(head() + BODY)
            assert client.read_head().status == 200
        assert second.requests[0].body == BODY
        (row,) = eventually(gateway.calls)
        assert (row["attempts"], row["units"], row["usage_source"]) == (2, {"audio_ms": 600_000}, "reported")
        eventually(lambda: used(gateway) == (0.6, 0))


def test_a_client_that_leaves_while_the_form_is_sent_on_pays_nothing(start_shared_gateway: StartsGateways) -> None:
    with Scripted(never_reads, reads_body=False) as first, Scripted() as second:
        gateway = gateway_of(start_shared_gateway, first, second)
        with gateway.connect() as client:
            client.send(head() + BODY)
            eventually(lambda: first.hits)
            assert used(gateway)[1] > 0
        (row,) = eventually(gateway.calls)
        assert (row["status"], row["units"], row["usage_source"], row["cost_usd"]) == (499, {}, "none", 0)
        eventually(lambda: used(gateway) == (0, 0))
