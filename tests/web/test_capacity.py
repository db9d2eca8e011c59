"""A worker's share of what the gateway takes upon itself."""

from __future__ import annotations

from gateway.config import ServerSettings, UploadSettings
from gateway.web.capacity import Capacity, Room


def test_what_is_held_stays_counted_when_the_limits_change() -> None:
    capacity = Capacity(
        ServerSettings(max_buffered_bytes=1000, max_request_bytes=100, max_in_flight=10, workers=2), UploadSettings()
    )
    assert capacity.max_calls == 5
    assert capacity.memory.hold(250, "alice")
    assert capacity.memory.hold(150, "bob")
    capacity.resize(
        ServerSettings(max_buffered_bytes=600, max_request_bytes=100, max_in_flight=4, workers=2), UploadSettings()
    )
    assert capacity.max_calls == 2
    assert not capacity.memory.hold(1, "carol")
    capacity.memory.release(200, "alice")
    assert capacity.memory.hold(100, "alice")
    capacity.resize(ServerSettings(max_buffered_bytes=2000, max_request_bytes=100, workers=2), UploadSettings())
    assert capacity.memory.hold(350, "alice")
    assert capacity.memory.hold(350, "bob")
    assert not capacity.memory.hold(1, "carol")


class Answer:
    """An answer that waits for room."""

    def __init__(self) -> None:
        self.proceeded = 0

    def proceed(self) -> None:
        self.proceeded += 1


def test_answers_beyond_the_share_of_a_key() -> None:
    room, first, second = Room(), Answer(), Answer()
    room.resize(1000, 100)
    assert room.hold_answer(500, "alice", "1", first.proceed)
    assert room.hold_answer(700, "alice", "2", second.proceed)  # one is read on
    assert not room.hold_answer(100, "alice", "1", first.proceed)
    assert room.hold_answer(100, "alice", "2", second.proceed)
    assert room.hold(500, "bob")
    assert not room.hold(1, "carol")
    assert not room.hold(1, "alice")
    room.release(50, "alice")  # a body of hers
    assert (first.proceeded, second.proceeded) == (0, 0)
    room.release(800, "alice", "2")
    assert (first.proceeded, second.proceeded) == (1, 0)
    assert room.hold_answer(100, "alice", "1", first.proceed)
    room.release(700 - 50, "alice", "1")
    room.release(500, "bob")
    assert repr(room).startswith("<Room 0 of 1000 bytes")
    assert room.hold(500, "carol")


def test_an_answer_that_has_ended_is_not_kept_by_its_wait() -> None:
    room, ended, other = Room(), Answer(), Answer()
    room.resize(100, 10)
    assert room.hold_answer(60, "alice", "1", other.proceed)
    assert not room.hold_answer(60, "alice", "2", ended.proceed)
    del ended
    room.release(60, "alice", "2")
    room.release(60, "alice", "1")
    assert (room.held, other.proceeded) == (0, 0)
