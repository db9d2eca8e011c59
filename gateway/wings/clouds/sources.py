"""Obtains grants: of a program, of a token endpoint, and by the libraries of Google, Microsoft and Amazon.

The libraries block, so each of their questions runs in a thread of its own, for which a stop of the gateway does not
wait. They are loaded there, too.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote_plus, urlencode

from gateway import untrusted_json
from gateway.config import Upstream
from gateway.upstream.ask import ask

from .auth import Auth
from .grant import Grant, GrantSource, NoGrant, Unsigned, bearer
from .settings import CloudUpstream
from .token_reply import error_of, read_grant

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
COGNITIVE = "https://cognitiveservices.azure.com/.default"

MAX_PRINTED_BYTES = 1_000_000
AWS_ASKED_EVERY_S = 60.0
"""botocore renews by itself from 15 minutes before the end (`RefreshableCredentials`), when it is asked. Programs that
sign in for people rewrite the files of AWS, in which keys have no end."""


LIBRARIES = ("azure", "botocore", "google.auth", "msal", "urllib3")
"""The loggers of the libraries. They repeat each refusal with its traceback, and may quote an answer."""


class Blocking(Protocol):
    """Obtains grants in a thread."""

    def obtain(self) -> Grant:
        """A grant. Any exception is a refusal, of which the log has the type."""


class InThread:
    """Asks a blocking source. While an answer is late, it is waited for and not asked for again."""

    def __init__(self, source: Blocking) -> None:
        for library in LIBRARIES:
            logging.getLogger(library).setLevel(logging.CRITICAL)
        self._source = source
        self._running: asyncio.Future[Grant] | None = None

    async def obtain(self) -> Grant:
        if self._running is None or self._running.done():
            self._running = _in_thread(self._source.obtain)
        return await asyncio.shield(self._running)


def _in_thread(obtain: Callable[[], Grant]) -> asyncio.Future[Grant]:
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Grant] = loop.create_future()
    found.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may have no waiter any more

    def settle(grant: Grant | None, refused: NoGrant | None) -> None:
        if found.done():
            return
        if grant is not None:
            found.set_result(grant)
        elif refused is not None:
            found.set_exception(refused)

    def run() -> None:
        grant, refused = None, None
        try:
            grant = obtain()
        except NoGrant as error:
            refused = error
        except Exception as error:  # any of a library; its text may quote a secret
            refused = NoGrant(_kinds_of(error))
        try:
            loop.call_soon_threadsafe(settle, grant, refused)
        except RuntimeError:
            pass  # the loop has been closed meanwhile

    threading.Thread(target=run, name="authorize", daemon=True).start()
    return found


def _kinds_of(error: Exception) -> str:
    """The kinds of an error and of its causes, and the status or code of an answer: nothing that a server wrote."""
    names: list[str] = []
    each: BaseException | None = error
    while each is not None and len(names) < 4:
        names.append(type(each).__name__)
        each = each.__cause__ or each.__context__
    answer = getattr(error, "response", None)
    status = getattr(answer, "status_code", None)
    if status is None and isinstance(answer, dict):
        status = answer.get("Error", {}).get("Code")
    return " by ".join(dict.fromkeys(names)) + (f" ({status})" if isinstance(status, int | str) else "")


# --------------------------------------------------------------------------------------------- programs and endpoints


class OfCommand:
    """Runs a program that prints a token."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth

    async def obtain(self) -> Grant:
        program = self._auth.command[0]
        try:
            running = await asyncio.create_subprocess_exec(
                *self._auth.command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL, limit=MAX_PRINTED_BYTES,
            )  # fmt: skip
        except OSError as error:
            raise NoGrant(f"{program} cannot be run: {error.strerror}") from None
        assert running.stdout is not None
        try:
            printed = bytearray()
            while len(printed) <= MAX_PRINTED_BYTES and (piece := await running.stdout.read(MAX_PRINTED_BYTES)):
                printed += piece  # a read ends with what one write of the program has brought
            if len(printed) > MAX_PRINTED_BYTES:
                raise NoGrant(f"{program} prints more than {MAX_PRINTED_BYTES} bytes")
            status = await running.wait()
        finally:
            if running.returncode is None:
                running.kill()
                await running.wait()
        if status:
            raise NoGrant(f"{program} ended with status {status}")
        return read_grant(bytes(printed), time.time())


class OfTokenEndpoint:
    """Asks a token endpoint with the credentials of a client (RFC 6749, 4.4)."""

    def __init__(self, auth: Auth, upstream: Upstream) -> None:
        self._auth = auth
        proxy = upstream.proxy.get_secret_value() if upstream.proxy is not None else None
        self._endpoint = Upstream.model_validate({"base_url": _without_query(auth), "proxy": proxy})

    async def obtain(self) -> Grant:
        auth = self._auth
        assert auth.client_id is not None
        assert auth.client_secret is not None
        parameters = {"grant_type": "client_credentials", "scope": " ".join(auth.scopes), "audience": auth.audience}
        pair = f"{quote_plus(auth.client_id)}:{quote_plus(auth.client_secret.get_secret_value())}"
        headers = [
            ("Content-Type", "application/x-www-form-urlencoded"),
            ("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"),
        ]
        body = urlencode({name: value for name, value in parameters.items() if value}).encode()
        reply = await ask(self._endpoint, "", auth.within_s, method="POST", body=body, headers=headers)
        if reply.status is None:
            raise NoGrant(reply.detail)
        if reply.status != 200:
            code = error_of(reply.body)
            raise NoGrant(f"the token endpoint answered {reply.status}{f' ({code})' if code else ''}")
        return read_grant(reply.body, time.time())


def _without_query(auth: Auth) -> str:
    return (auth.token_url or "").partition("?")[0]


# ------------------------------------------------------------------------------------------------------- libraries


class OfGoogle:
    """A token by google-auth: of a file, or of the application default credentials."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth

    def obtain(self) -> Grant:
        from google.auth.transport.requests import Request

        credentials = self._credentials()  # anew each time, because files rotate
        credentials.refresh(Request())
        expiry = credentials.expiry
        return bearer(credentials.token, None if expiry is None else expiry.replace(tzinfo=UTC).timestamp())

    def _credentials(self) -> Any:
        import google.auth
        from google.auth import impersonated_credentials

        scopes = [*self._auth.scopes] or [CLOUD_PLATFORM]
        if self._auth.file is None:
            credentials, _ = google.auth.default(scopes=scopes)
        else:
            credentials = _google_file(self._auth.file, scopes)
        if self._auth.impersonate is None:
            return credentials
        return impersonated_credentials.Credentials(credentials, self._auth.impersonate, scopes)  # type: ignore[no-untyped-call]


def _google_file(path: str, scopes: list[str]) -> Any:
    from google.auth import identity_pool
    from google.oauth2 import credentials, service_account

    kinds: Mapping[str, Callable[..., Any]] = {
        "service_account": service_account.Credentials.from_service_account_info,
        "external_account": identity_pool.Credentials.from_info,
        "authorized_user": credentials.Credentials.from_authorized_user_info,
    }
    try:
        info = untrusted_json.parse(Path(path).read_text())
        kind = info["type"]
    except OSError as error:
        raise NoGrant(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError):
        raise NoGrant(f"{path} is no file of Google credentials") from None
    if kind not in kinds:
        raise NoGrant(f"{path} has another type than {', '.join(kinds)}: name it in GOOGLE_APPLICATION_CREDENTIALS")
    return kinds[kind](info, scopes=scopes)


class OfAzure:
    """A token of Entra ID by azure-identity, which keeps it until it is due itself."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth
        self._credential: Any = None

    def obtain(self) -> Grant:
        if self._credential is None:
            self._credential = self._make()
        try:
            token = self._credential.get_token(*(self._auth.scopes or (COGNITIVE,)))
        except Exception:
            self._credential = None  # a certificate or a secret may be another one by the next time
            raise
        return bearer(token.token, float(token.expires_on))

    def _make(self) -> Any:
        from azure.identity import CertificateCredential, ClientSecretCredential, DefaultAzureCredential

        auth, tenant, client = self._auth, self._auth.tenant_id or "", self._auth.client_id or ""
        # An authority that the operator names is not looked up in the list of public ones, which is elsewhere.
        more = {"disable_instance_discovery": bool(os.environ.get("AZURE_AUTHORITY_HOST"))}
        if auth.client_secret is not None:
            return ClientSecretCredential(tenant, client, auth.client_secret.get_secret_value(), **more)
        if auth.file is not None:
            return CertificateCredential(tenant, client, auth.file, **more)
        named = {"managed_identity_client_id": client, "workload_identity_client_id": client} if client else {}
        return DefaultAzureCredential(**named, **more)


class OfAws:
    """Credentials by botocore's chain, with which each request is signed (Signature Version 4). They are good for all
    regions of a partition; `region` is where STS is asked."""

    def __init__(self, auth: Auth, region: str) -> None:
        self._auth = auth
        self._region = region
        self._credentials: Any = None

    def obtain(self) -> Grant:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import RefreshableCredentials

        if not isinstance(self._credentials, RefreshableCredentials):
            self._credentials = self._find()  # anew each time, because files and their keys rotate
        try:
            frozen = self._credentials.get_frozen_credentials()
        except Exception:
            self._credentials = None
            raise

        def lines(unsigned: Unsigned) -> str:
            request = AWSRequest(unsigned.method, unsigned.url, data=unsigned.body)
            SigV4Auth(frozen, unsigned.service, unsigned.region).add_auth(request)
            return "".join([f"{name}: {value}\r\n" for name, value in request.headers.items()])

        expiry = getattr(self._credentials, "_expiry_time", None)
        expires_at = expiry.timestamp() if isinstance(self._credentials, RefreshableCredentials) and expiry else None
        secrets = tuple(each for each in (frozen.secret_key, frozen.token) if each)
        may_change = expires_at is not None or getattr(self._credentials, "method", "").endswith("-file")
        return Grant(lines, secrets, expires_at, AWS_ASKED_EVERY_S if may_change else None)

    def _find(self) -> Any:
        from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
        from botocore.session import Session

        auth = self._auth
        session = Session(profile=auth.profile)
        session.set_config_variable("region", self._region)
        if auth.access_key_id is not None and auth.secret_access_key is not None:
            token = auth.session_token.get_secret_value() if auth.session_token is not None else None
            session.set_credentials(auth.access_key_id, auth.secret_access_key.get_secret_value(), token)
        found = session.get_credentials()
        if found is None:
            raise NoGrant("botocore finds no credentials: none in the environment, in files, or at a metadata server")
        if auth.role_arn is None:
            return found
        more = {"ExternalId": auth.external_id} if auth.external_id is not None else {}
        fetcher = AssumeRoleCredentialFetcher(session.create_client, found, auth.role_arn, more)
        return DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")


_OTHER_PARTITION = re.compile(r"cn|us-gov|us-iso[a-z]?|eu-isoe|eusc")
"""The beginnings of regions in other partitions than `aws` (botocore, data/partitions.json)."""


def of(upstream: CloudUpstream) -> GrantSource | None:
    """The source of what authorizes the requests to this upstream; None: its API keys do."""
    auth = upstream.auth
    match auth.type:
        case "command":
            return OfCommand(auth)
        case "oauth":
            return OfTokenEndpoint(auth, upstream)
        case "google":
            return InThread(OfGoogle(auth))
        case "azure":
            return InThread(OfAzure(auth))
        case "aws":
            return InThread(OfAws(auth, upstream.region))
    return None


def identity_of(upstream: CloudUpstream) -> tuple[Auth, str]:
    """Equal for upstreams for which a source obtains the same: their `auth`, and the proxy on the way to the token
    endpoint, or the partition of AWS whose credentials are none elsewhere."""
    auth, beside = upstream.auth, ""
    if auth.type == "oauth" and upstream.proxy is not None:
        beside = upstream.proxy.get_secret_value()
    if auth.type == "aws":
        found = _OTHER_PARTITION.match(upstream.region)
        beside = found[0] if found is not None else "aws"
    return auth.model_copy(update={"region": None, "service": None}), beside
