"""Errors of Amazon's services, and of their streams. Pure.

The kind is in the header `x-amzn-errortype`, sometimes with an address behind a colon, and the body has `message` alone
(Smithy, "AWS restJson1 protocol", "Operation error serialization"). The statuses are in botocore, data/bedrock-runtime.
"""

from __future__ import annotations

from collections.abc import Mapping

EXPIRED = "ExpiredTokenException"
OF_CREDENTIALS: Mapping[str, str] = {
    EXPIRED: "the credentials have expired: renew them where the chain finds them (aws sso login, a newer file)",
    "UnrecognizedClientException": "AWS knows no such access key, or its session is another one's",
    "InvalidClientTokenId": "AWS knows no such access key, or its session is another one's",
    "InvalidSignatureException": "the secret does not belong to the access key, or this machine's clock is wrong",
    "SignatureDoesNotMatch": "the secret does not belong to the access key, or this machine's clock is wrong",
    "RequestExpired": "the signature is too old: this machine's clock is wrong",
    "MissingAuthenticationTokenException": "no authorization arrived: look at proxies on the way",
    "IncompleteSignature": "no whole signature arrived: look at proxies on the way",
}
"""The meaning of a refusal of credentials (AWS, "Common error types"); most come with 403, as others do."""

STATUS: Mapping[str, int] = {
    **dict.fromkeys(OF_CREDENTIALS, 401),
    "ServiceQuotaExceededException": 429,  # Bedrock sends it with 400, which blames the request
    "ThrottlingException": 429,
    "ModelNotReadyException": 503,  # Bedrock sends it with 429; it is no limit of ours
    "ResourceNotFoundException": 503,  # this region or account has no such model; another one may have it
}
"""The status that an error has for the gateway, in place of its own."""


class UnreadableStream(ValueError):
    """A binary stream is none any more. The text quotes nothing of it."""

    def __init__(self, text: str, before: bytes) -> None:
        super().__init__(text)
        self.before = before
        """The server-sent events of the good messages before, in the same bytes."""


def kind_of(header: str | None) -> str:
    """The kind of an error; empty: it names none."""
    return (header or "").partition(":")[0].rpartition("#")[2].strip()


def status_of(status: int, header: str | None) -> int:
    """The status of an answer by its kind."""
    return STATUS.get(kind_of(header), status) if status >= 400 else status
