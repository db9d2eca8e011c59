"""Decoders of content encodings: whole, in pieces of any size, and never more than one piece ahead of their caller."""

from __future__ import annotations

import gzip
import random
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace

import brotli
import pytest

from gateway.upstream import content_encoding
from gateway.upstream.content_encoding import PIECE_BYTES, Decoder, EncodingFault, decoder_of
from tests.amounts import amount

zstd = import_module("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")

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


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress, "deflate": raw_deflate, "br": brotli.compress, "zstd": zstd.compress,
}  # fmt: skip


def decoded(decoder: Decoder | None, pieces: list[bytes]) -> bytes:
    assert decoder is not None
    return b"".join([piece for data in pieces for piece in decoder.decode(data)])


@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_decoded_in_pieces_of_any_size(name: str, size: int) -> None:
    encoding, data = ENCODED[name]
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert decoded(decoder_of(encoding), pieces) == TEXT


@pytest.mark.parametrize("value", ["identity", "", "Identity, identity"])
def test_identity(value: str) -> None:
    assert decoder_of(value) is None


@pytest.mark.parametrize("value", ["x-none", "gzip, gzip", "gzip, br"])
def test_unknown_encoding_is_named(value: str) -> None:
    with pytest.raises(EncodingFault, match=rf"'{value}' cannot be decoded \(only br, deflate, gzip, x-gzip, zstd\)"):
        decoder_of(value)


@pytest.mark.parametrize("encoding", COMPRESS)
def test_broken_body_is_named(encoding: str) -> None:
    with pytest.raises(EncodingFault, match=f"content-encoding {encoding}: "):
        decoded(decoder_of(encoding), [b'{"a": 1}'])
    with pytest.raises(EncodingFault, match=f"content-encoding {encoding}: "):
        decoded(decoder_of(encoding), [ENCODED[encoding][1] + b"behind"])


@pytest.mark.parametrize("encoding", COMPRESS)
def test_long_text(encoding: str) -> None:
    data = COMPRESS[encoding](LONG)
    assert decoded(decoder_of(encoding), [data[:100], data[100:]]) == LONG


@pytest.mark.shortened
@pytest.mark.parametrize("encoding", COMPRESS)
def test_bomb_is_decoded_piece_by_piece(encoding: str) -> None:
    decoder = decoder_of(encoding)
    assert decoder is not None
    bomb = COMPRESS[encoding](bytes(amount(50_000_000, 10_000_000)))
    assert len(bomb) < 100_000
    tracemalloc.start()
    pieces = decoder.decode(bomb)
    lengths = [len(next(pieces)) for _ in range(100)]
    _, highest = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert max(lengths) <= PIECE_BYTES
    assert sum(lengths) > PIECE_BYTES
    assert highest < 10 * PIECE_BYTES


def test_br_needs_a_library_that_limits_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brotli before 1.2 would decode a bomb in one step: it is as good as none."""
    old = SimpleNamespace(Decompressor=object)
    monkeypatch.setattr(
        content_encoding, "import_module", lambda name: old if name == "brotli" else import_module(name)
    )
    assert "br" not in content_encoding._decoders()
