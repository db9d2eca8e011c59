"""The line between the supervisor and a worker."""

from __future__ import annotations

import socket

from gateway.control import Line


async def pair() -> tuple[Line, Line]:
    one, other = socket.socketpair()
    return await Line.over(one), await Line.over(other)


async def test_messages_go_both_ways_in_order() -> None:
    one, other = await pair()
    text = "é\n\u2028" * 200_000  # longer than any buffer of a socket
    for message in ({"ready": True}, {"text": text}, {"drain": 2.5, "nothing": None}):
        one.send(**message)
        other.send(**message)
        assert await other.receive() == message
        assert await one.receive() == message
    one.close()
    other.close()


async def test_the_end_of_the_line_says_that_the_other_side_is_gone() -> None:
    one, other = await pair()
    one.send(last=1)
    one.close()
    one.send(late=1)
    assert await other.receive() == {"last": 1}
    assert await other.receive() is None
    other.send(answer=1)
    other.close()
    other.send(answer=2)


async def test_half_a_message_is_none() -> None:
    ours, theirs = socket.socketpair()
    line = await Line.over(ours)
    theirs.sendall(b'{"ready": tr')
    theirs.close()
    assert await line.receive() is None
    line.close()
