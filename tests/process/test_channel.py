"""The line between the supervisor and a worker."""

from __future__ import annotations

import socket

import pytest

from gateway.process.channel import ChannelClosed, ControlChannel
from gateway.tasks import Tasks


async def pair() -> tuple[ControlChannel, ControlChannel]:
    one, other = socket.socketpair()
    return await ControlChannel.over(one), await ControlChannel.over(other)


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
    line = await ControlChannel.over(ours)
    theirs.sendall(b'{"ready": tr')
    theirs.close()
    assert await line.receive() is None
    line.close()


async def test_each_side_may_ask_the_other_and_answers_find_their_questions() -> None:
    one, other = await pair()
    tasks = Tasks()
    first = tasks.spawn(one.ask("how much", of="this"), "first")
    second = tasks.spawn(one.ask("how many"), "second")
    listening = tasks.spawn(one.receive(), "listen")
    questions = [await other.receive(), await other.receive()]
    assert [question and question["ask"] for question in questions] == ["how much", "how many"]
    assert questions[0] is not None
    assert questions[1] is not None
    assert questions[0]["of"] == "this"
    other.answer(questions[1], {"many": 2})
    other.answer(questions[0], None)
    other.send(ready=True)
    assert (await second, await first) == ({"many": 2}, None)
    assert await listening == {"ready": True}  # answers are no messages
    one.close()
    other.close()
    await tasks.cancel_all()


async def test_a_request_fails_when_the_other_side_has_ended() -> None:
    one, other = await pair()
    tasks = Tasks()
    asked = tasks.spawn(one.ask("anybody"), "ask")
    listening = tasks.spawn(one.receive(), "listen")
    await other.receive()
    other.close()
    with pytest.raises(ChannelClosed):
        await asked
    assert await listening is None
    with pytest.raises(ChannelClosed):
        await one.ask("anybody")
    one.close()
    with pytest.raises(ChannelClosed):
        await other.ask("anybody")


async def test_a_late_answer_is_dropped() -> None:
    one, other = await pair()
    tasks = Tasks()
    asked = tasks.spawn(one.ask("anybody"), "ask")
    question = await other.receive()
    assert question is not None
    await tasks.cancel_all()
    assert asked.cancelled()
    other.answer(question, 1)
    other.send(last=1)
    assert await one.receive() == {"last": 1}
    one.close()
    other.close()
