"""The length of audio files by their headers: of each format, and of files that are cut or hostile."""

from __future__ import annotations

import random

import pytest

from gateway.api.audio_length import MAX_MS, length_ms
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
        assert found is None or 0 < found <= MAX_MS


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
