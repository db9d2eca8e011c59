"""The length of an audio file by its own header: wav, flac, ogg, mp3, m4a and mp4, webm.

Libraries that read tags (tinytag, mutagen) have no limit of work per file, and none reads webm. This module reads a
bounded number of short pieces of any file, and decodes nothing. A header may be false: a length counts only if it is
at least that of the file's bytes at the highest bit rate of its format.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gateway.formats.reported_usage import MAX_AUDIO_MS

Reads = Callable[[int, int], bytes]
"""Reads this many bytes from a position; fewer at the end of the file."""

HEAD_BYTES = 65_536
"""Bytes in which the first header is searched, and bytes read of the end."""

MAX_BOXES = 512
"""Maximum number of chunks, boxes or elements that are read of one file."""

MAX_READS = 10_000
"""Maximum number of pieces that are read of one file: boxes may be in boxes, as many in each."""


class Length(NamedTuple):
    """The length of a file in milliseconds, rounded up."""

    ms: int | None = None
    """Length by the file's header; None if the header cannot be read, or its length is too short for the file's
    bytes."""
    least_ms: int = 0
    """Length of the file's bytes at the highest bit rate of its format; 0 if the format is unknown."""


_UNKNOWN = Length()


def length_of(read: Reads, size: int) -> Length:
    """The length of a file of `size` bytes."""
    head = read(0, HEAD_BYTES)
    start = _behind_id3(head)
    if start:
        head = read(start, HEAD_BYTES)
    left = MAX_READS

    def bounded(at: int, length: int) -> bytes:
        nonlocal left
        left -= 1
        return read(at, length) if left >= 0 else b""

    for begins, find in _KINDS:
        if begins(head):
            try:
                found, least = find(bounded, start, size, head)
            except (struct.error, IndexError):
                return _UNKNOWN
            least_ms = min(MAX_AUDIO_MS, _rounded_up(least))
            found_ms = _rounded_up(found)
            is_known = left >= 0 and least_ms <= found_ms <= MAX_AUDIO_MS and found_ms > 0
            return Length(found_ms if is_known else None, least_ms)
    return _UNKNOWN


def length_ms(read: Reads, size: int) -> int | None:
    """Milliseconds by the header, rounded up; None if they cannot be read, or are too few for `size` bytes."""
    return length_of(read, size).ms


Fraction = tuple[int, int]
"""Milliseconds as dividend and divisor; a divisor of 0: they are unknown."""

_NONE: Fraction = (0, 0)

Found = tuple[Fraction, Fraction]
"""The length by the header, and that of the bytes at the highest bit rate."""


def _rounded_up(of: Fraction) -> int:
    return -(-of[0] // of[1]) if of[0] > 0 and of[1] > 0 else 0


def _behind_id3(head: bytes) -> int:
    """Where the file begins behind an ID3v2 tag (id3.org, ID3v2.4 structure 3.1), which has its size in 7-bit bytes."""
    if head[:3] != b"ID3" or len(head) < 10:
        return 0
    a, b, c, d = [byte & 0x7F for byte in head[6:10]]
    return 10 + (a << 21 | b << 14 | c << 7 | d) + (10 if head[5] & 0x10 else 0)


# ------------------------------------------------------------------------------------------------------------ wav


_BITS_PER_SAMPLE = {6: 8, 7: 8}
"""Bits per sample of A-law and mu-law, by format; PCM and floats state theirs (Microsoft, `mmreg.h`)."""
_PCM = frozenset({1, 3, 0xFFFE})
_COMPRESSED_BITS = 16
"""Maximum bits per sample of other formats, which state their own byte rate."""


def _of_wav(read: Reads, start: int, size: int, head: bytes) -> Found:
    """RIFF WAVE: the bytes from `data` to the end of the file by the rate in `fmt `. The length of `data` does not
    count, because some decoders read on behind it."""
    at, rate = start + 12, 0
    for _ in range(MAX_BOXES):
        chunk = read(at, 32)
        name, length = struct.unpack_from("<4sI", chunk)
        if name == b"fmt ":
            kind, channels, samples, rate, _, bits = struct.unpack_from("<HHIIHH", chunk, 8)
            bits = bits if kind in _PCM else _BITS_PER_SAMPLE.get(kind, _COMPRESSED_BITS)
            most = samples * channels * -(-bits // 8)
            rate = most if kind in _PCM or kind in _BITS_PER_SAMPLE else min(rate, most)
        elif name == b"data":
            played = 1000 * max(0, size - at - 8), rate
            return played, played
        at += 8 + length + length % 2
    return _NONE, _NONE


# ----------------------------------------------------------------------------------------------------------- flac


def _of_flac(read: Reads, start: int, size: int, head: bytes) -> Found:
    """STREAMINFO, always the first block (RFC 9639, 8.2): 20 bits of sample rate, 3 of channels and 5 of bits for each
    sample, both less one, and 36 bits of samples. At most the bit rate of the same sound in PCM."""
    info = int.from_bytes(head[18:26], "big")
    rate, channels, bits = info >> 44, (info >> 41 & 7) + 1, (info >> 36 & 31) + 1
    return (1000 * (info & (1 << 36) - 1), rate), _at_least(size - start - _FLAC_HEAD, rate * channels * bits)


_FLAC_HEAD = 4_096
"""Bytes of tags; pictures count as sound, which leaves room for them where it is compressed."""


# ------------------------------------------------------------------------------------------------------------ ogg


OPUS_BITS_PER_S = 512_000


def _of_ogg(read: Reads, start: int, size: int, head: bytes) -> Found:
    """The position in samples of the last page (RFC 3533, section 6). Opus counts at 48 kHz (RFC 7845, section 4)."""
    vorbis = head.find(b"\x01vorbis", 0, 1024)
    rate = 48_000 if b"OpusHead" in head[:1024] else 0
    if vorbis >= 0:
        rate = int(struct.unpack_from("<I", head, vorbis + 12)[0])
    tail = read(max(start, size - HEAD_BYTES), HEAD_BYTES)
    page = tail.rfind(b"OggS\0")
    least = _at_least(size - start, OPUS_BITS_PER_S)
    if not rate or page < 0:
        return _NONE, least
    return (1000 * struct.unpack_from("<q", tail, page + 6)[0], rate), least


# ------------------------------------------------------------------------------------------------------------ mp3


_SYNC = re.compile(rb"\xff[\xe2-\xff]", re.DOTALL)
_MP3_KBITS = {
    (1, 1): (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (1, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (1, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 1): (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (2, 3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""Kilobits per second by MPEG version (2: also 2.5) and layer (ISO/IEC 11172-3, 2.4.2.3; 13818-3)."""
_MP3_HZ = (44_100, 48_000, 32_000)
MP3_BITS_PER_S = 320_000


def _of_mp3(read: Reads, start: int, size: int, head: bytes) -> Found:
    """Frames of the Xing or VBRI header, else the bytes at the rate of the first frame."""
    for found in _SYNC.finditer(head, 0, len(head) - 4):
        at = found.start()
        version, layer = {3: 1, 2: 2, 0: 4}.get(head[at + 1] >> 3 & 3, 0), 4 - (head[at + 1] >> 1 & 3)
        kbits, hz = head[at + 2] >> 4, head[at + 2] >> 2 & 3
        if not version or layer == 4 or kbits in (0, 15) or hz == 3:
            continue
        per_second = 1000 * _MP3_KBITS[min(version, 2), layer][kbits]
        rate = _MP3_HZ[hz] // version
        samples = 384 if layer == 1 else 576 if layer == 3 and version > 1 else 1152
        slot = 4 if layer == 1 else 1
        following = at + (samples // 8 // slot * per_second // rate + (head[at + 2] >> 1 & 1)) * slot
        if head[following : following + 1] not in (b"\xff", b""):
            continue
        least = _at_least(size - start - at, MP3_BITS_PER_S)
        if frames := _frames(head[at : at + 256]):
            return (1000 * frames * samples, rate), least
        return _at_least(size - start - at, per_second), least
    return _NONE, _NONE


def _frames(frame: bytes) -> int:
    """The number of frames in the first frame (Xing, Info or VBRI); 0: not given."""
    for name in (b"Xing", b"Info"):
        at = frame.find(name)
        if at >= 0 and len(frame) >= at + 12 and frame[at + 7] & 1:
            return int.from_bytes(frame[at + 8 : at + 12], "big")
    at = frame.find(b"VBRI")
    return int.from_bytes(frame[at + 14 : at + 18], "big") if at >= 0 else 0


# ------------------------------------------------------------------------------------------------------------ mp4


MP4_BITS_PER_S = 1_536_000
"""Bit rate of two channels of 16 bits at 48 kHz without loss (ALAC), the highest of audio. A film has a higher rate, so
its length does not count."""

_MAX_RUNS = 1024
"""Runs of samples of equal duration that are read of one table; sound has one or two."""


def _of_mp4(read: Reads, start: int, size: int, head: bytes) -> Found:
    """The longest of the lengths in `moov`: `mvhd`; of a fragmented file `mehd` in `mvex`; the samples of each track
    (ISO/IEC 14496-12, 8.2.2, 8.8.2, 8.4.2 and 8.6.1.2)."""
    movie = next((_of_movie(read, at, end) for name, at, end in _boxes(read, start, size) if name == b"moov"), _NONE)
    return movie, _at_least(size - start, MP4_BITS_PER_S)


def _of_movie(read: Reads, start: int, end: int) -> Fraction:
    scale, length, tracks = 0, 0, [_NONE]
    for name, at, box_end in _boxes(read, start, end):
        if name == b"mvhd":
            length, scale = _of_header(read, at)
        elif name == b"mvex" and not length:
            for inner, place, _ in _boxes(read, at, box_end):
                if inner == b"mehd":
                    body = read(place, 12)
                    length = int(struct.unpack_from(">Q" if body[0] else ">I", body, 4)[0])
        elif name == b"trak" and len(tracks) < _MAX_TRACKS:
            tracks.append(_of_track(read, at, box_end))
    return max((1000 * length, scale), *tracks, key=_value)


_MAX_TRACKS = 8


def _of_header(read: Reads, at: int) -> tuple[int, int]:
    """Length and its scale of `mvhd` or `mdhd`."""
    body = read(at, 32)
    scale, length = struct.unpack_from(">IQ", body, 20) if body[0] else struct.unpack_from(">II", body, 12)
    return length, scale


def _of_track(read: Reads, start: int, end: int) -> Fraction:
    """Returns the length of the samples of one track in milliseconds, as a fraction with the time scale of its
    `mdhd`."""
    scale = samples = 0
    for name, at, box_end in _inside(read, start, end, b"mdia"):
        if name == b"mdhd":
            _, scale = _of_header(read, at)
        elif name == b"minf":
            tables = [each for each in _inside(read, at, box_end, b"stbl") if each[0] == b"stts"]
            for _, place, inner_end in tables[-1:]:  # a track has one
                runs = read(place + 8, min(8 * _MAX_RUNS, inner_end - place - 8))
                samples = sum([count * each for count, each in struct.iter_unpack(">II", runs[: len(runs) & ~7])])
    return 1000 * samples, scale


def _inside(read: Reads, start: int, end: int, name: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The boxes inside the first box of this name."""
    found = next((each for each in _boxes(read, start, end) if each[0] == name), None)
    if found is not None:
        yield from _boxes(read, found[1], found[2])


def _boxes(read: Reads, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Name, content and end of each box."""
    for _ in range(MAX_BOXES):
        header = read(at, 16)
        if at + 8 > end or len(header) < 8:
            return
        length, name = struct.unpack_from(">I4s", header)
        begin = at + 8
        if length == 1:
            length, begin = int(struct.unpack_from(">Q", header, 8)[0]), at + 16
        box_end = end if length == 0 else at + length
        if box_end < begin or box_end > end:
            return
        yield name, begin, box_end
        at = box_end


# ----------------------------------------------------------------------------------------------------------- webm


_SEGMENT, _INFO, _SCALE, _DURATION, _CLUSTER = 0x18538067, 0x1549A966, 0x2AD7B1, 0x4489, 0x1F43B675
_TIMESTAMP, _SIMPLE_BLOCK, _BLOCK_GROUP, _BLOCK = 0xE7, 0xA3, 0xA0, 0xA1
_CLUSTER_ID = _CLUSTER.to_bytes(4, "big")

MAX_PIECES = 32
"""Pieces of `HEAD_BYTES` at the end of a webm file in which its last cluster is searched. A cluster has at most 33 s,
because its blocks have 16 bits of milliseconds: 2 MB of sound at the highest rate."""

MAX_BLOCKS = 4096
"""Maximum number of blocks that are read of one cluster: 33 s in blocks of 10 ms are 3,300."""


WEBM_BITS_PER_S = OPUS_BITS_PER_S
"""Highest bit rate of Opus and Vorbis. A film has a higher rate, so its length does not count."""


def _of_webm(read: Reads, start: int, size: int, head: bytes) -> Found:
    """Duration in `Info` of the segment, in units of its scale in nanoseconds (RFC 9559, 5.1.2), or the time of the
    last block, whichever is later. Browsers that record write no duration: the last block is at most 120 ms before
    the end."""
    least = _at_least(size - start, WEBM_BITS_PER_S)
    scale, length = 1_000_000, 0.0
    for name, at, end in _elements(read, start, size):
        if name != _SEGMENT:
            continue
        for inner, place, inner_end in _elements(read, at, end):
            if inner == _INFO:
                scale, length = _of_info(read, place, inner_end)
                if scale >= 10**12 or not 0 <= length < 1e15:
                    return _NONE, least
            if inner == _CLUSTER:
                length = max(length, _last_time(read, place, size))
                break
        break
    return (int(length * scale), 1_000_000), least


def _of_info(read: Reads, start: int, end: int) -> tuple[int, float]:
    """Scale and duration; 0: it has none."""
    scale, length = 1_000_000, 0.0
    for name, at, stop in _elements(read, start, end):
        value = read(at, min(8, stop - at))
        if name == _SCALE:
            scale = int.from_bytes(value, "big")
        elif name == _DURATION and len(value) in (4, 8):
            length = struct.unpack(">f" if len(value) == 4 else ">d", value)[0]
    return scale, length


def _last_time(read: Reads, start: int, size: int) -> int:
    """Returns the time of the last block of the last cluster, in units of the scale; 0 if it is not found."""
    end = size
    for _ in range(MAX_PIECES):
        begin = max(start - 12, end - HEAD_BYTES)  # the first cluster's own id is just before its content
        piece = read(begin, end - begin + len(_CLUSTER_ID) - 1)
        at = piece.rfind(_CLUSTER_ID)
        if at >= 0:
            return _time_of_cluster(read, begin + at, size)
        if begin <= start - 12:
            break
        end = begin
    return 0


def _time_of_cluster(read: Reads, at: int, size: int) -> int:
    """A cluster has its time, and each block its own from there (RFC 9559, 5.1.3 and 10.2)."""
    _, content, end = next(_elements(read, at, size), (0, size, size))
    start = last = 0
    for name, place, stop in _elements(read, content, end, MAX_BLOCKS):
        if name == _TIMESTAMP:
            start = int.from_bytes(read(place, min(8, stop - place)), "big")
        elif name == _SIMPLE_BLOCK:
            last = max(last, _time_of_block(read, place))
        elif name == _BLOCK_GROUP:
            for inner, block, _ in _elements(read, place, stop):
                if inner == _BLOCK:
                    last = max(last, _time_of_block(read, block))
    return start + last


def _time_of_block(read: Reads, at: int) -> int:
    """It follows the number of the track, which has as many bytes as its first one has leading zeros, and one."""
    head = read(at, 10)
    track = 9 - head[0].bit_length() if head else 0
    return int.from_bytes(head[track : track + 2], "big", signed=True)


def _elements(read: Reads, at: int, end: int, most: int = MAX_BOXES) -> Iterator[tuple[int, int, int]]:
    """Id, content and end of each element (RFC 8794, section 4); one of unknown size extends to the end."""
    for _ in range(most):
        header = read(at, 12)
        if at >= end or not header or not header[0]:
            return
        id_size = 9 - header[0].bit_length()
        if id_size > 4 or len(header) <= id_size or not header[id_size]:
            return
        size_size = 9 - header[id_size].bit_length()
        begin = at + id_size + size_size
        length = int.from_bytes(header[id_size : id_size + size_size], "big") & (1 << 7 * size_size) - 1
        is_unknown = length == (1 << 7 * size_size) - 1
        stop = end if is_unknown else min(end, begin + length)
        yield int.from_bytes(header[:id_size], "big"), begin, stop
        at = stop


def _at_least(size: int, bits_per_s: int) -> Fraction:
    return 8000 * max(0, size), bits_per_s


def _value(of: Fraction) -> float:
    return of[0] / of[1] if of[1] else 0.0


_KINDS: tuple[tuple[Callable[[bytes], bool], Callable[[Reads, int, int, bytes], Found]], ...] = (
    (lambda head: head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE", _of_wav),
    (lambda head: head[:4] == b"fLaC", _of_flac),
    (lambda head: head[:4] == b"OggS", _of_ogg),
    (lambda head: head[4:8] == b"ftyp", _of_mp4),
    (lambda head: head[:4] == b"\x1aE\xdf\xa3", _of_webm),
    (lambda head: True, _of_mp3),
)
