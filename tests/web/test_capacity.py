"""A worker's share of what the gateway takes upon itself."""

from __future__ import annotations

from gateway.config import ServerSettings, UploadSettings
from gateway.web.capacity import Capacity


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
