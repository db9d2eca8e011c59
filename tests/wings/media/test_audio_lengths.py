"""A header, or a report, with less sound than the bytes of a file have does not count: for no charge, for no limit."""

from __future__ import annotations

import struct

import pytest

from gateway.wings.media import audio_length
from gateway.wings.media.transcriptions import LOWEST_BYTES_PER_S
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes import forms
from tests.fakes.scripted import ok_json
from tests.flows.gateway_process import Gateway, settings

SOUND = bytes(1_200_000)
"""Ten minutes of speech at 16 kbit/s."""


def two_chunks() -> bytes:
    """A wav whose first `data` has two bytes, and is followed by all of the sound."""
    whole = forms.wav(0)
    rest = struct.pack("<4sI", b"data", len(SOUND)) + SOUND
    return whole[:40] + struct.pack("<I", 2) + b"\0\0" + rest


def film() -> bytes:
    """An mp4 whose header says a second, and whose samples are those of ten minutes."""

    def box(name: bytes, *inside: bytes) -> bytes:
        body = b"".join(inside)
        return struct.pack(">I4s", 8 + len(body), name) + body

    head = box(b"mvhd", bytes(12), struct.pack(">II", 1000, 1000), bytes(80))
    media = box(b"mdhd", bytes(12), struct.pack(">II", 1000, 1000), bytes(4))
    samples = box(b"stts", bytes(4), struct.pack(">III", 1, 600_000, 1))
    track = box(b"trak", box(b"mdia", media, box(b"minf", box(b"stbl", samples))))
    return box(b"ftyp", b"M4A \0\0\0\0") + box(b"moov", head, track) + box(b"mdat", SOUND)


UNREADABLE = {
    "flac": b"fLaC" + bytes(14) + (16_000 << 44 | 15 << 36 | 16_000).to_bytes(8, "big") + SOUND,
    "mp4": forms.mp4(1) + SOUND,
    "webm": forms.webm(1) + SOUND,
    "ogg": SOUND.join([forms.ogg(1)[:140], forms.ogg(1)[140:]]),
    "mp3": forms.mp3(2000, counted=38),
}
"""Files of a second by their headers."""


def length_of(data: bytes) -> audio_length.Length:
    return audio_length.length_of(lambda start, size: data[start : start + size], len(data))


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_header_that_is_too_short_for_the_bytes_does_not_count(kind: str) -> None:
    found = length_of(UNREADABLE[kind])
    assert found.ms is None
    assert found.least_ms > 5_000


def test_all_sound_of_a_file_counts_whatever_its_first_header_says() -> None:
    assert (length_of(two_chunks()).ms or 0) >= 1000 * len(SOUND) // 16_000
    assert length_of(film()).ms == 600_000
    late = forms.recorded_webm(60)
    info = late.index(bytes.fromhex("2ad7b1"))
    duration = bytes.fromhex("448910000008") + struct.pack(">d", 1000.0)
    size = info - 4
    grown = int.from_bytes(late[size:info], "big") + len(duration)
    data = late[:size] + grown.to_bytes(4, "big") + duration + late[info:]
    assert length_of(data).ms == 59_940


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    scribe = {
        "endpoints": ["transcriptions", "translations"], "routes": [{"upstream": "main"}],
        "price": {"audio_per_minute": 0.006},
    }  # fmt: skip
    models = {"scribe": scribe, "short": scribe | {"limits": {"max_audio_s": 30}}}
    return start_shared_gateway(settings(shared_upstream.url, models=models))


REPORTS = [{}, {"duration": 1.0}, {"usage": {"type": "duration", "seconds": 1}}, {"duration": 0}]


@pytest.mark.parametrize("path", ["transcriptions", "translations"])
@pytest.mark.parametrize("report", REPORTS, ids=str)
def test_a_false_length_is_charged_by_the_bytes_and_marked(
    gateway: Gateway, upstream: ScriptedUpstream, path: str, report: dict[str, object]
) -> None:
    for data in UNREADABLE.values():
        upstream.answer_with(ok_json({"text": "Hello"} | report))
        body = forms.form(("model", "scribe"), ("file", data))
        got = gateway.post(f"/v1/audio/{path}", body, headers=forms.TYPE)
        row = gateway.call(got.headers["x-request-id"])
        assert row["usage_source"] == "estimated"
        assert row["units"] == {"audio_ms": -(-1000 * len(data) // LOWEST_BYTES_PER_S)}


def test_a_report_that_the_bytes_can_have_counts(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    for data in UNREADABLE.values():
        upstream.answer_with(ok_json({"text": "Hello", "duration": 300}))
        body = forms.form(("model", "scribe"), ("file", data))
        row = gateway.call(gateway.post("/v1/audio/transcriptions", body, headers=forms.TYPE).headers["x-request-id"])
        assert (row["usage_source"], row["units"]) == ("reported", {"audio_ms": 300_000})


@pytest.mark.parametrize("data", [two_chunks(), film(), *UNREADABLE.values()], ids=["wav", "film", *UNREADABLE])
def test_a_false_length_does_not_pass_a_limit(gateway: Gateway, upstream: ScriptedUpstream, data: bytes) -> None:
    body = forms.form(("model", "short"), ("file", data))
    got = gateway.post("/v1/audio/transcriptions", body, headers=forms.TYPE)
    assert (got.status, got.json["error"]["param"]) == (400, "file")
    assert upstream.requests == []
