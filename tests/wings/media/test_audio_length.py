"""The length of audio files by their headers: of each format, and of files that are cut or hostile."""

from __future__ import annotations

import random
import struct

import pytest

from gateway.formats.reported_usage import MAX_AUDIO_MS
from gateway.wings.media import audio_length
from gateway.wings.media.audio_length import length_ms
from tests.fakes import forms


def measured(data: bytes) -> int | None:
    return length_ms(lambda start, size: data[start : start + size], len(data))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (forms.wav(2.5), 2500),
        (forms.wav(1.0)[:-8000], 500),  # cut
        (forms.wav(1.0)[:40] + b"\xff\xff\xff\xff" + forms.wav(1.0)[44:], 1000),  # streamed: no length
        (forms.wav(1.0)[:28] + b"\xff\xff\xff\x0f" + forms.wav(1.0)[32:], 1000),  # wrong byte rate
        (forms.flac(61.25), 61250),
        (forms.flac(0), None),
        (forms.ogg(7), 7000),
        (forms.ogg(0.001)[:-50] + bytes(640_000), None),
        (forms.mp3(100), 2607),
        (forms.mp3(10, counted=1000), 26123),
        (forms.mp3(1000, counted=1), None),  # too few frames for the bytes at 320 kbit/s
        (forms.mp4(12.5), 12500),
        (forms.mp4(12.5, is_behind=True), 12500),
        (forms.webm(9.5), 9500),
        (forms.webm(None), None),
        (forms.recorded_webm(2), 1980),
        (forms.recorded_webm(29, block_bytes=3750), 28980),  # 500 kbit/s: a cluster of several pieces
        (forms.recorded_webm(95), 94980),
        (forms.recorded_webm(40, is_grouped=True), 39960),
        (forms.recorded_webm(5)[:30_000], 3660),  # cut
        (forms.recorded_webm(0), None),
        (b"\x1aE\xdf\xa3\x80\x18S\x80g\x01" + b"\xff" * 7 + b"\x1fC\xb6u" * 2000, None),
        (b"", None),
        (b"no audio at all", None),
        (b"RIFF\0\0\0\0WAVE", None),
        (b"\xff\xfb\x90\x00 no frame behind it" + bytes(500), None),
        (b"\0\0\0\x08ftyp" + b"\0\0\0\0", None),
        (b"\0\0\0\x08ftyp" * 10_000, None),
        (b"\x1aE\xdf\xa3" + b"\x80" * 10_000, None),
    ],
)
def test_length(data: bytes, expected: int | None) -> None:
    assert measured(data) == expected


def test_whatever_a_file_says_the_reader_ends_and_stays_in_range() -> None:
    seed = random.Random(5)
    whole = [
        forms.wav(0.2), forms.flac(3), forms.ogg(3), forms.mp3(5), forms.mp3(5, counted=9), forms.mp4(3),
        forms.webm(3), forms.recorded_webm(3), forms.recorded_webm(3, is_grouped=True),
    ]  # fmt: skip
    for _ in range(1500):
        data = bytearray(seed.choice(whole)[: seed.choice([200, 1000, 5000])])
        for _ in range(seed.randrange(1, 6)):
            data[seed.randrange(len(data))] = seed.choice([0, 1, 0x7F, 0x80, 0xFF])
        found = measured(bytes(data))
        assert found is None or 0 < found <= MAX_AUDIO_MS


def test_reads_are_few_and_short() -> None:
    reads: list[int] = []

    def read(start: int, size: int) -> bytes:
        reads.append(size)
        return data[start : start + size]

    data = b"\0\0\0\x08ftyp" + b"\0\0\0\x08free" * 100_000
    assert length_ms(read, len(data)) is None
    assert sum(reads) < 200_000


def test_the_search_for_the_last_cluster_is_bounded() -> None:
    reads: list[int] = []

    def read(start: int, size: int) -> bytes:
        reads.append(size)
        return data[start : start + size]

    data = forms.recorded_webm(1) + b"\xa3\x81\x00" * 2_000_000
    assert length_ms(read, len(data)) is None
    assert sum(reads) < 2_200_000
    reads.clear()
    data = forms.recorded_webm(31, block_bytes=50) + b"\xa3\x84\x81\x00\x00\x00" * 20_000
    assert length_ms(read, len(data)) == 30960
    assert len(reads) < 10_000


def test_runs_of_samples_are_read_of_one_table_of_each_track() -> None:
    table = _box(b"stts", bytes(8) + struct.pack(">II", 1, 1) * 1024)
    track = _box(b"trak", _box(b"mdia", _box(b"minf", _box(b"stbl", table * 40))))
    data, size = _box(b"ftyp", b"M4A \0\0\0\0") + _box(b"moov", track * 8), 0

    def read(start: int, length: int) -> bytes:
        nonlocal size
        size += length
        return data[start : start + length]

    assert audio_length.length_of(read, len(data)).ms is None
    assert size < 200_000


def _webm() -> bytes:
    """A last cluster of groups, each with as many blocks as are read of one."""
    group = b"\xa0" + (0x4000 | 1024).to_bytes(2, "big") + b"\xa1\x80" * 512
    endless = b"\x01" + b"\xff" * 7
    return b"\x1aE\xdf\xa3\x80\x18\x53\x80\x67" + endless + b"\x1f\x43\xb6\x75" + endless + group * 1_900


def _box(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), name) + content


def _mp4() -> bytes:
    """As many boxes with fragments as are read, each with as many boxes."""
    return _box(b"ftyp", b"M4A \0\0\0\0") + _box(b"moov", _box(b"mvex", _box(b"free", b"") * 512) * 512)


FILES = {
    "webm": _webm(), "mp4": _mp4(), "wav": b"RIFF\0\0\0\0WAVE" + (b"junk" + bytes(4)) * 100_000,
    "mp3": b"\xff\xfb\x90\0" * 500_000, "ogg": b"OggS" + b"OggS\0" * 400_000, "flac": b"fLaC" + bytes(2_000_000),
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_audio_is_read_in_a_bounded_number_of_pieces(kind: str) -> None:
    data, reads = FILES[kind], 0

    def read(start: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        return data[start : start + size]

    found = audio_length.length_of(read, len(data))
    assert reads <= audio_length.MAX_READS + 2
    if kind in ("webm", "mp4"):
        assert found.ms is None
        assert found.least_ms > 0
