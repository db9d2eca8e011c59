"""The access log: lines arrive, and a pipe without a reader blocks no call."""

from __future__ import annotations

import asyncio
import json
import os

from gateway.web import access_log
from gateway.web.access_log import AccessLog


async def test_lines_arrive_in_order_and_the_last_ones_too() -> None:
    reading, writing = os.pipe()
    log = AccessLog("json", writing)
    for number in range(100):
        log.write(number=number, nothing=None)
    await log.close()
    os.close(writing)
    with os.fdopen(reading) as text:
        lines = [json.loads(line) for line in text]
    assert [line["number"] for line in lines] == list(range(100))
    assert all("nothing" not in line for line in lines)


async def test_unread_log_is_bounded_and_does_not_hold_the_end() -> None:
    reading, writing = os.pipe()
    log = AccessLog("text", writing)
    for _ in range(3):
        for _ in range(access_log.MAX_WAITING):
            log.write(path="/" + "x" * 50)
        await asyncio.sleep(access_log.FLUSH_S * 1.5)
    assert len(log._waiting) <= access_log.MAX_WAITING
    assert log._left_out > 0
    async with asyncio.timeout(access_log.CLOSE_WITHIN_S + 5):
        await log.close()
    os.close(reading)  # without a reader the writer's write fails, and its thread ends
    if log._writer is not None:
        log._writer.join(5)
    os.close(writing)
