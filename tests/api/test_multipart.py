"""The reader of multipart forms: the same parts however the bytes are cut; what parsers read differently is refused."""

from __future__ import annotations

import pytest

from gateway.api import multipart
from gateway.api.multipart import FormParser, FormPart
from gateway.errors import BodyTooLarge, InvalidRequest
from tests.fakes.forms import BOUNDARY, form, part

END = f"--{BOUNDARY}--\r\n".encode()
PLAIN = form(("model", "whisper-1"), ("file", b"\0\r\n--\r\n------form-5f2" * 20), ("prompt", "wörd\r\n-- "))


def read(body: bytes, cut: int = 1 << 20, max_file_bytes: int = 10_000) -> list[FormPart]:
    parser = FormParser(BOUNDARY, max_file_bytes)
    for at in range(0, len(body), cut):
        parser.feed(body[at : at + cut])
    return parser.parts()


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 64, 100_000])
def test_parts_are_found_however_the_body_is_cut(cut: int) -> None:
    parts = read(PLAIN, cut)
    assert [(each.name, each.value) for each in parts] == [
        ("model", "whisper-1"), ("file", None), ("prompt", "wörd\r\n-- "),
    ]  # fmt: skip
    assert PLAIN[parts[1].start : parts[1].end] == b"\0\r\n--\r\n------form-5f2" * 20
    assert PLAIN[parts[0].start : parts[0].end] == b"whisper-1"


@pytest.mark.parametrize(
    "head",
    [
        b'content-disposition: form-data; name=model\r\n',
        b'Content-Disposition: form-data; name="model"\r\nContent-Type: text/plain; charset=utf-8\r\n',
        b'Content-Disposition:form-data;name="model"\r\nContent-Length: 1\r\nContent-Transfer-Encoding: 8bit\r\n',
    ],
)  # fmt: skip
def test_heads_of_usual_clients(head: bytes) -> None:
    (found,) = read(f"--{BOUNDARY}\r\n".encode() + head + b"\r\nx\r\n" + END)
    assert (found.name, found.value) == ("model", "x")


def with_head(*lines: str) -> bytes:
    return f"--{BOUNDARY}\r\n".encode() + "\r\n".join([*lines, "", ""]).encode("latin-1") + b"x\r\n" + END


DISPOSITION = 'Content-Disposition: form-data; name="model"'
GOOD = part("model", "x")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "ends before its last boundary"),
        (b"\r\n" + GOOD + END, "does not begin with its boundary"),
        (b"preamble\r\n" + GOOD + END, "does not begin with its boundary"),
        (GOOD, "ends before its last boundary"),
        (GOOD + END[:-4], "ends before its last boundary"),
        (GOOD + END + b"epilogue", "something behind its last boundary"),
        (GOOD + END[:-2] + b"\n", "something behind its last boundary"),
        (GOOD.replace(b"\r\n", b"\n") + END, "does not begin|followed by other bytes"),
        (GOOD + f"--{BOUNDARY}x\r\n".encode() + END, "followed by other bytes"),
        (GOOD + f"--{BOUNDARY} \r\n".encode() + END, "followed by other bytes"),
        (form(("file", f"x\n--{BOUNDARY}\n".encode())), "its boundary is inside a part"),
        (form(("file", f"x--{BOUNDARY}".encode())), "its boundary is inside a part"),
        (form(("prompt", f"--{BOUNDARY}")), "its boundary is inside a part"),
        (with_head(DISPOSITION, "Content-Length: 2"), "another length than its Content-Length"),
        (with_head(DISPOSITION, "Content-Encoding: gzip"), "Content-Encoding"),
        (with_head(DISPOSITION, "Content-Type: multipart/mixed; boundary=x"), "form or a message itself"),
        (with_head(DISPOSITION, "folded: a", " b"), "headers of a part cannot be read"),
        (with_head(DISPOSITION, DISPOSITION), "headers of a part cannot be read"),
        (with_head(DISPOSITION, "no colon"), "headers of a part cannot be read"),
        (with_head(DISPOSITION + "\nX: y"), "headers of a part cannot be read"),
        (with_head(DISPOSITION, "X: " + "y" * 9000), "headers of a part are longer"),
        (with_head("X: y"), "no Content-Disposition"),
        (with_head("Content-Disposition: attachment; name=model"), "no Content-Disposition"),
        (with_head("Content-Disposition: form-data"), "no Content-Disposition"),
        (with_head('Content-Disposition: form-data; name=""'), "no Content-Disposition"),
        (with_head(DISPOSITION + '; name="file"'), "no Content-Disposition"),
        (with_head(DISPOSITION + "; other=1"), "no Content-Disposition"),
        (with_head('Content-Disposition: form-data; name="mo\\"del"'), "no Content-Disposition"),
        (with_head('Content-Disposition: form-data; name="m\xf6del"'), "name of a part is not supported"),
        (with_head('Content-Disposition: form-data; name="mod el"'), "name of a part is not supported"),
        (with_head('Content-Disposition: form-data; name="_charset_"'), "name of a part is not supported"),
        (with_head(DISPOSITION, "Content-Transfer-Encoding: base64"), "Content-Transfer-Encoding"),
        (with_head(DISPOSITION, "Content-Type: text/plain; charset=utf-16"), "charset other than UTF-8"),
        (part("prompt", "x").replace(b"\r\nx\r", b"\r\n\xff\r") + END, "is not UTF-8"),
        (form(("prompt", "x" * 140_000)), "field 'prompt' is too long"),
        (form(*[(f"a{n}", "x" * 100_000) for n in range(3)]), "is too long"),
        (form(*[(f"a{n}", "x") for n in range(200)]), "more than 128 parts"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cut", [5, 1 << 20])
def test_what_parsers_read_differently_is_refused(body: bytes, words: str, cut: int) -> None:
    with pytest.raises(InvalidRequest, match=words):
        read(body, cut)


def test_a_long_file_is_refused_before_its_end() -> None:
    parser = FormParser(BOUNDARY, 10_000)
    parser.feed(part("file", b"x" * 5_000)[:-2])
    with pytest.raises(BodyTooLarge, match="'file' is longer than 10000 bytes"):
        parser.feed(b"x" * 6_000)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("multipart/form-data; boundary=abc", "abc"),
        ('Multipart/Form-Data;boundary="a b:c"', "a b:c"),
        ("multipart/form-data; charset=utf-8; boundary=----WebKitFormBoundaryX", "----WebKitFormBoundaryX"),
        ("multipart/form-data; boundary==_x/y", "=_x/y"),
        ("multipart/form-data", None),
        ("multipart/form-data;", None),
        ("multipart/form-data; boundary=", None),
        ("multipart/form-data; boundary=a; boundary=b", None),
        ("multipart/form-data; boundary=a; Boundary=a", None),
        ('multipart/form-data; boundary="a\\"b"', None),
        ('multipart/form-data; boundary="a "', None),
        ("multipart/form-data; boundary=" + "x" * 71, None),
        ("multipart/form-data; boundary=a, multipart/form-data; boundary=b", None),
        ("multipart/form-data; boundary=a; x=y", None),
    ],
)
def test_boundary(given: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(InvalidRequest, match="Content-Type"):
            multipart.boundary_of(given)
    else:
        assert multipart.boundary_of(given) == expected
        assert multipart.boundary_of(multipart.content_type(expected)) == expected
