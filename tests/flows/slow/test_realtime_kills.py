"""A worker is killed while a Realtime session is open: its books are closed by recovery."""

from __future__ import annotations

import os
import signal

from tests.conftest import StartsGateways
from tests.fakes.realtime import RealtimeUpstream
from tests.flows.house import eventually
from tests.flows.test_realtime import ASK, close_code, configuration, session, until


async def test_a_killed_worker_leaves_no_reservation_and_no_slot(gateway: StartsGateways) -> None:
    with RealtimeUpstream() as upstream:
        house = gateway(configuration(upstream, server={"port": 0, "workers": 1}))
        upstream.stops_inside = True
        async with session(house, "small") as socket:
            await socket.send_json(ASK)
            await until(socket, "response.output_text.delta")
            (worker,) = house.workers()
            os.kill(worker, signal.SIGKILL)
            assert await close_code(socket) == 1006
        of_session, response = eventually(
            lambda: (rows := house.calls("small"))[1:] and sorted(rows, key=lambda row: row["id"])
        )
        assert (of_session["ended"], of_session["prompt_tokens"], of_session["completion_tokens"]) == ("lost", 0, 0)
        assert (response["ended"], response["prompt_tokens"], response["completion_tokens"]) == ("lost", 1024, 500)
        (window,) = house.admin("quotas", key="small").json["data"]
        assert (window["used"], window["reserved"]) == (1524, 0)
