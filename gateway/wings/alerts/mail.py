"""One attempt to mail an alert, and its result: a session of the standard library's client in a thread.

No text of the server is shown, because it may quote what was sent; its code is.
"""

from __future__ import annotations

import asyncio
import json
import smtplib
import ssl
from collections.abc import Sequence
from email.message import EmailMessage
from email.utils import format_datetime, localtime
from hashlib import sha256

from .settings import Smtp
from .webhook import PostResult

TAKEN = PostResult(250, "it is taken")


class Mail:
    """The server to mail to."""

    def __init__(self, settings: Smtp) -> None:
        self._settings = settings

    def __repr__(self) -> str:
        return f"<Mail by {self._settings.host}>"

    async def post(self, body: bytes) -> PostResult:
        """Mail what `forms` made once. Never raises."""
        try:
            message, to = self._message(body)
        except Exception as error:  # its text may quote the mail
            return PostResult(None, f"the mail cannot be written ({type(error).__name__})", is_final=True)
        return await asyncio.to_thread(self._attempt, message, to)

    def _message(self, body: bytes) -> tuple[EmailMessage, list[str]]:
        """The mail and its receivers."""
        mail = json.loads(body)
        message = EmailMessage()
        message["From"], message["To"] = self._settings.sender, ", ".join(mail["to"])
        message["Subject"] = subject_of(mail["subject"])
        message["Date"] = format_datetime(localtime())
        domain = self._settings.sender.rpartition("@")[2]
        message["Message-ID"] = f"<{sha256(body).hexdigest()[:32]}@{domain}>"  # the same in each attempt
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(mail["text"])
        return message, mail["to"]

    async def connect(self) -> PostResult:
        """Connect and sign in, and mail nothing."""
        return await asyncio.to_thread(self._attempt, None, ())

    async def close(self) -> None:
        """Does nothing: each attempt has its own connection."""

    def _attempt(self, message: EmailMessage | None, to: Sequence[str]) -> PostResult:
        try:
            with self._session() as session:
                if message is not None:
                    refused = session.send_message(message, self._settings.sender, to)
                    if refused:  # some of the addresses: the others have it, and would get it again
                        return PostResult(250, f"it refuses {len(refused)} of {len(to)} addresses")
                else:
                    session.noop()
            return TAKEN
        except smtplib.SMTPRecipientsRefused as error:
            return _refusal(min(code for code, _ in error.recipients.values()), "every address")
        except smtplib.SMTPAuthenticationError as error:
            return _refusal(error.smtp_code, "username and password")
        except smtplib.SMTPResponseException as error:
            return _refusal(error.smtp_code, "the mail")
        except smtplib.SMTPNotSupportedError:
            return PostResult(None, f"it does not support {self._wanted}", is_final=True)
        except ssl.SSLError as error:
            hint = "it speaks no TLS at its first byte: write starttls" if "WRONG_VERSION" in str(error) else ""
            return PostResult(None, hint or "its certificate cannot be trusted, or TLS failed otherwise")
        except UnicodeEncodeError as error:  # its text quotes the mail
            return PostResult(None, f"the mail cannot be written ({type(error).__name__})", is_final=True)
        except Exception as error:  # smtplib also raises what its readers of odd answers do, such as binascii.Error
            return PostResult(None, f"it cannot be reached, or does not answer ({type(error).__name__})")

    @property
    def _wanted(self) -> str:
        return "STARTTLS, or signing in" if self._settings.security == "starttls" else "signing in"

    def _session(self) -> smtplib.SMTP:
        settings, context = self._settings, ssl.create_default_context()
        if settings.security == "tls":
            session: smtplib.SMTP = smtplib.SMTP_SSL(
                settings.host, settings.port, timeout=settings.timeout, context=context
            )
        else:
            session = smtplib.SMTP(settings.host, settings.port, timeout=settings.timeout)
        try:
            if settings.security == "starttls":
                session.starttls(context=context)
            if settings.username is not None and settings.password is not None:
                session.login(settings.username, settings.password.get_secret_value())
        except BaseException:
            session.close()
            raise
        return session


def subject_of(text: str) -> str:
    """One line for the header: no space but plain ones, and no beginning of an encoded word (RFC 2047), which the
    standard library would decode, line ends and all: clients choose tags."""
    return " ".join(text.split()).replace("=?", "= ?")


def _refusal(code: int, what: str) -> PostResult:
    """A code of 500 and more is for good (RFC 5321, 4.2.1)."""
    return PostResult(None, f"it refuses {what} ({code})", is_final=code >= 500)
