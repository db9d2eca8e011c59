"""Decoders of content encodings: whole, in pieces of any size, and never more than one piece ahead of their caller."""

from __future__ import annotations

import gzip
import random
import zlib
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.upstream.content_encoding import (
    DECODERS,
    PIECE_BYTES,
    Decoder,
    EncodingFault,
    _Brotli,
    _Zstd,
    decoder_of,
)

TEXT = b"hello hello hello hello"
LONG = random.Random(1).randbytes(1000) * 1000


def raw_deflate(data: bytes) -> bytes:
    return zlib.compress(data, wbits=-15)


ENCODED = {
    # Header value, encoded text.
    "gzip": ("gzip", gzip.compress(TEXT)),
    "gzip of two members": ("GZIP", gzip.compress(TEXT[:7]) + gzip.compress(TEXT[7:])),
    "x-gzip": ("x-gzip", gzip.compress(TEXT)),
    "deflate": ("deflate", zlib.compress(TEXT)),
    "deflate without a header": ("identity, Deflate", raw_deflate(TEXT)),
    "br": ("br", bytes.fromhex("1b1600f88d946ede445586966c206f214f1ce038")),
    "zstd": ("zstd", b"\x28\xb5\x2f\xfd\x20\x17" + (23 << 3 | 1).to_bytes(3, "little") + TEXT),
}


def is_known(name: str) -> bool:
    """Whether this interpreter has the library."""
    return ENCODED[name][0] not in ("br", "zstd") or ENCODED[name][0] in DECODERS


def decoded(decoder: Decoder | None, pieces: list[bytes]) -> bytes:
    assert decoder is not None
    return b"".join([piece for data in pieces for piece in decoder.decode(data)])


@pytest.mark.parametrize("name", [name for name in ENCODED if is_known(name)])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_decoded_in_pieces_of_any_size(name: str, size: int) -> None:
    encoding, data = ENCODED[name]
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert decoded(decoder_of(encoding), pieces) == TEXT


@pytest.mark.parametrize("value", ["identity", "", "Identity, identity"])
def test_identity(value: str) -> None:
    assert decoder_of(value) is None


@pytest.mark.parametrize("value", ["x-none", "gzip, gzip", "gzip, br", *sorted({"br", "zstd"} - set(DECODERS))])
def test_unknown_encoding_is_named(value: str) -> None:
    with pytest.raises(EncodingFault, match=rf"'{value}' cannot be decoded \(only .*deflate, gzip"):
        decoder_of(value)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_broken_body_is_named(encoding: str) -> None:
    with pytest.raises(EncodingFault, match=f"content-encoding {encoding}: "):
        decoded(decoder_of(encoding), [b'{"a": 1}'])
    with pytest.raises(EncodingFault, match=f"content-encoding {encoding}: "):
        decoded(decoder_of(encoding), [ENCODED[encoding][1] + b"behind"])


@pytest.mark.parametrize(("encoding", "encode"), [("gzip", gzip.compress), ("deflate", raw_deflate)])
def test_long_text(encoding: str, encode: Any) -> None:
    data = encode(LONG)
    assert decoded(decoder_of(encoding), [data[:100], data[100:]]) == LONG


@pytest.mark.parametrize(("encoding", "encode"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_bomb_is_decoded_piece_by_piece(encoding: str, encode: Any) -> None:
    decoder = decoder_of(encoding)
    assert decoder is not None
    pieces = decoder.decode(encode(bytes(50_000_000)))
    assert [len(next(pieces)) for _ in range(3)] == [PIECE_BYTES] * 3


# -------------------------------------------------------------- interfaces of libraries that may not be installed


class FakeBrotli:
    """`brotli.Decompressor` of Brotli 1.2, with text that it repeats in place of a compression."""

    def __init__(self) -> None:
        self.left = b""

    def process(self, data: bytes, output_buffer_limit: int) -> bytes:
        assert not (data and self.left), "no input is allowed while output is left"
        if data == b"broken":
            raise ValueError("brotli: decoder failed")
        self.left += data * 1000
        piece, self.left = self.left[:output_buffer_limit], self.left[output_buffer_limit:]
        return piece

    def can_accept_more_data(self) -> bool:
        return not self.left


class FakeZstd:
    """`compression.zstd.ZstdDecompressor`; a frame ends with a full stop."""

    def __init__(self, options: dict[str, int]) -> None:
        assert options == {"window_log_max": 23}
        self.left = b""
        self.eof = False
        self.needs_input = True
        self.unused_data = b""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        if data == b"broken":
            raise ValueError("Unable to decompress Zstandard data")
        frame, stop, rest = data.partition(b".")
        self.left += (frame + stop) * 1000
        self.unused_data += rest
        piece, self.left = self.left[:max_length], self.left[max_length:]
        self.eof = not self.left and piece.endswith(b".")
        self.needs_input = not self.left
        return piece


FAKES: dict[str, Any] = {
    "br": lambda: _Brotli(SimpleNamespace(Decompressor=FakeBrotli, error=ValueError)),
    "zstd": lambda: _Zstd(
        SimpleNamespace(
            ZstdDecompressor=FakeZstd,
            ZstdError=ValueError,
            DecompressionParameter=SimpleNamespace(window_log_max="window_log_max"),
        )
    ),
}


@pytest.mark.parametrize("encoding", FAKES)
def test_use_of_an_optional_library(encoding: str) -> None:
    text = bytes(97) + b"."
    decoder = FAKES[encoding]()
    pieces = list(decoder.decode(text * 2 if encoding == "br" else text + text))
    assert max(map(len, pieces)) <= PIECE_BYTES
    assert b"".join(pieces).count(b".") == 2000
    with pytest.raises(EncodingFault, match=f"content-encoding {encoding}: "):
        list(FAKES[encoding]().decode(b"broken"))
