"""Mail to a real server (aiosmtpd): STARTTLS, TLS, signing in, refusals, and no secret in what is shown."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any, cast

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session
from pydantic import SecretStr

from gateway.wings.alerts.mail import Mail
from gateway.wings.alerts.settings import Smtp
from gateway.wings.alerts.webhook import PostResult
from tests.fakes.scripted import Authority, Scripted, Wire, dead_port

PASSWORD = "PASSW0RD-that-nobody-may-see"
BODY = {
    "to": ["ann@example.org", "leads@example.org"],
    "subject": "80 % of a quota: Zoë\nBcc: x@y.z",
    "text": "Zoë ü\n",
}


class Box:
    """What the server has taken; `answer` is its answer to a mail."""

    def __init__(self) -> None:
        self.taken: list[tuple[list[str], EmailMessage]] = []
        self.answer = "250 OK"
        self.refused: set[str] = set()

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's name
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address in self.refused:
            return "550 no such user, and PASSW0RD-that-nobody-may-see"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        if self.answer.startswith("250"):
            message = message_from_bytes(cast(bytes, envelope.content), policy=policy.default)
            self.taken.append((envelope.rcpt_tos, message))
        return self.answer


Starts = Callable[..., tuple[Box, int]]


@pytest.fixture
def start() -> Iterator[Starts]:
    """Starts servers on the loopback."""
    running = []

    def begin(**how: Any) -> tuple[Box, int]:
        box = Box()
        controller = Controller(box, hostname="127.0.0.1", port=dead_port(), **how)
        controller.start()
        running.append(controller)
        return box, controller.port

    yield begin
    for controller in running:
        controller.stop()


def signs_in(server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any) -> AuthResult:
    return AuthResult(success=(data.login, data.password) == (b"gateway", PASSWORD.encode()), handled=False)


@pytest.fixture
def server_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """The context of a server whose authority is trusted, as by an operator with SSL_CERT_FILE."""
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca_file))
    return authority.server_context("127.0.0.1")


def mail(port: int, **settings: Any) -> Mail:
    return Mail(
        Smtp(**{"host": "127.0.0.1", "port": port, "sender": "gateway@example.org", "security": "none", **settings})
    )


def signed(**more: Any) -> dict[str, Any]:
    return {"username": "gateway", "password": SecretStr(PASSWORD), **more}


async def post(port: int, **settings: Any) -> PostResult:
    sender = mail(port, **settings)
    result = await sender.post(json.dumps(BODY, ensure_ascii=False).encode())
    assert PASSWORD not in repr(sender) + repr(result)
    return result


async def test_a_mail_arrives_as_it_was_written(start: Starts) -> None:
    box, port = start()
    assert (await post(port)).is_taken
    ((to, message),) = box.taken
    assert to == BODY["to"]
    assert message["From"] == "gateway@example.org"
    assert message["To"] == "ann@example.org, leads@example.org"
    assert message["Subject"] == "80 % of a quota: Zoë Bcc: x@y.z"
    assert message["Auto-Submitted"] == "auto-generated"
    assert message.get_content().splitlines() == ["Zoë ü"]


@pytest.mark.parametrize(
    "name",
    [
        "=?utf-8?q?x=0D=0ABcc:_mallory@example.org=0D=0A=0D=0Atext?=",
        "=?utf-8?b?DQpCY2M6IG1hbGxvcnlAZXhhbXBsZS5vcmc=?=",
        "=?utf-7?q?+2AA-?=",
        "=?unknown-8bit?q?=ff?=",
    ],
)
async def test_a_name_that_is_an_encoded_word_stays_a_name(start: Starts, name: str) -> None:
    """Clients choose tags, which are in the subject; the standard library decodes such words, line ends and all."""
    box, port = start()
    body = {**BODY, "subject": f"the tag project={name} has used 80 %"}
    assert (await mail(port).post(json.dumps(body).encode())).is_taken
    ((_, message),) = box.taken
    assert message["Subject"].replace(" ", "") == body["subject"].replace(" ", "")
    assert message["Bcc"] is None
    assert message.get_content().splitlines() == ["Zoë ü"]


async def test_a_mail_that_cannot_be_written_is_given_up(start: Starts) -> None:
    box, port = start()
    for more in ({"to": ["a\r\nb@example.org"]}, {"text": "\ud800"}):
        result = await mail(port).post(json.dumps({**BODY, **more}).encode())
        assert (result.status, result.is_final) == (None, True)
    assert box.taken == []


async def test_attempts_for_one_alert_have_one_message_id(start: Starts) -> None:
    box, port = start()
    await post(port)
    await post(port)
    first, second = [message["Message-ID"] for _, message in box.taken]
    assert first == second


async def test_starttls_and_signing_in(start: Starts, server_tls: ssl.SSLContext) -> None:
    box, port = start(tls_context=server_tls, require_starttls=True, authenticator=signs_in, auth_required=True)
    assert (await post(port, **signed(security="starttls"))).is_taken
    assert len(box.taken) == 1


async def test_tls_from_the_first_byte(start: Starts, server_tls: ssl.SSLContext) -> None:
    box, port = start(ssl_context=server_tls)
    assert (await post(port, security="tls")).is_taken
    assert len(box.taken) == 1
    assert not (await post(port, security="none", timeout=0.5)).is_taken


async def test_a_wrong_password_is_for_good(start: Starts, server_tls: ssl.SSLContext) -> None:
    box, port = start(tls_context=server_tls, require_starttls=True, authenticator=signs_in, auth_required=True)
    result = await post(port, **signed(security="starttls", password=SecretStr(f"{PASSWORD}x")))
    assert result == PostResult(None, "it refuses username and password (535)", is_final=True)
    assert box.taken == []


async def test_an_untrusted_certificate_gets_no_password(start: Starts, tmp_path: Path) -> None:
    context = Authority(tmp_path).server_context("127.0.0.1")
    seen: list[str] = []

    def watch(*given: Any) -> AuthResult:
        seen.append("asked")
        return AuthResult(success=True)

    _, port = start(tls_context=context, require_starttls=True, authenticator=watch)
    result = await post(port, **signed(security="starttls"))
    assert result == PostResult(None, "its certificate cannot be trusted, or TLS failed otherwise")
    assert seen == []


async def test_a_server_without_starttls_gets_no_password(start: Starts) -> None:
    _, port = start()
    result = await post(port, **signed(security="starttls"))
    assert result == PostResult(None, "it does not support STARTTLS, or signing in", is_final=True)


@pytest.mark.parametrize(
    "answers",
    [(b"250-x\r\n250 AUTH CRAM-MD5\r\n", b"334 a\r\n"), (b"\xff\r\n",), (b"250-\xff AUTH \xff\r\n" * 3, b"x\r\n"), ()],
)
async def test_whatever_a_server_answers_is_a_result(answers: tuple[bytes, ...]) -> None:
    """An alert whose delivery raised would wait for ever."""

    async def speak(wire: Wire) -> None:
        await wire.write(b"220 here\r\n")
        for answer in answers:
            await wire.reader.readline()
            await wire.write(answer)
        wire.close()

    with Scripted(greeting=speak) as server:
        result = await post(server.port, **signed())
    assert result.status is None
    assert "it cannot be reached, or does not answer" in result.detail or "does not support" in result.detail


@pytest.mark.parametrize(("answer", "is_final"), [("451 later", False), ("421 busy", False), ("554 spam", True)])
async def test_refusals_of_a_mail(answer: str, is_final: bool, start: Starts) -> None:
    box, port = start()
    box.answer = answer
    assert await post(port) == PostResult(None, f"it refuses the mail ({answer[:3]})", is_final=is_final)


async def test_one_of_two_addresses_is_refused(start: Starts) -> None:
    box, port = start()
    box.refused = {"ann@example.org"}
    result = await post(port)
    assert (result.is_taken, result.detail) == (True, "it refuses 1 of 2 addresses")
    box.refused.add("leads@example.org")
    assert await post(port) == PostResult(None, "it refuses every address (550)", is_final=True)


async def test_no_server_or_a_silent_one() -> None:
    assert not (await post(dead_port())).is_taken
    with socket.create_server(("127.0.0.1", 0)) as silent:
        result = await post(silent.getsockname()[1], timeout=0.1)
    assert (result.is_taken, result.is_final) == (False, False)


async def test_connecting_mails_nothing(start: Starts) -> None:
    box, port = start()
    assert (await mail(port).connect()).is_taken
    assert box.taken == []
    assert not (await mail(dead_port()).connect()).is_taken
