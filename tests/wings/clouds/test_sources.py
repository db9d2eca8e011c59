"""What authorizes requests, obtained from local servers by the vendors' own libraries, which nothing here changes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from gateway.config import build
from gateway.wings.clouds import sources
from gateway.wings.clouds.grant import Grant, NoGrant, Unsigned
from gateway.wings.clouds.settings import CloudUpstream
from tests.fakes.scripted import Authority, Scripted, answer, error_json, silent, until

from .fakes import ACCESS, SECRET, SESSION, aws_keys, form_of, numbered, sts_answer, token_reply

AMBIENT = ("AWS_", "AZURE_", "GOOGLE_", "GCE_", "IDENTITY_", "MSI_", "CLOUDSDK_", "REQUESTS_CA")


@pytest.fixture(autouse=True)
def no_ambient_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No library finds anything of this machine."""
    for name in [name for name in os.environ if name.startswith(AMBIENT)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def cloud() -> Iterator[Scripted]:
    with Scripted(prefix="") as server:
        yield server


def upstream(auth: dict[str, Any] | str, base_url: str = "http://127.0.0.1:1/v1") -> CloudUpstream:
    values = {
        "upstreams": {"up": {"base_url": base_url, "auth": auth}},
        "models": {"m": {"routes": [{"upstream": "up"}]}},
    }
    found = build(values).upstreams["up"]
    assert isinstance(found, CloudUpstream)
    return found


async def obtained(auth: dict[str, Any] | str) -> Grant:
    source = sources.of(upstream(auth))
    assert source is not None
    return await source.obtain()


def left_s(grant: Grant) -> float:
    assert grant.expires_at is not None
    return grant.expires_at - time.time()


# ---------------------------------------------------------------------------------------------------------- programs


def program(text: str) -> dict[str, Any]:
    return {"type": "command", "command": ["/bin/sh", "-c", text]}


async def test_a_program_prints_a_token() -> None:
    grant = await obtained(program("""echo '{"token": "of-a-program", "expires_in": 600}'"""))
    assert grant.head == "Authorization: Bearer of-a-program\r\n"
    assert 500 < left_s(grant) <= 600


async def test_a_program_may_print_its_token_in_pieces() -> None:
    blanks = "head -c 200000 /dev/zero | tr '\\0' ' '"
    pieces = f"""printf '{{"token": "of-'; printf 'pieces", '; {blanks}; echo '"expires_in": 9}}'"""
    grant = await obtained(program(pieces))
    assert (grant.head, left_s(grant) <= 9) == ("Authorization: Bearer of-pieces\r\n", True)


@pytest.mark.parametrize(
    ("auth", "reason"),
    [
        (program("exec yes a-secret"), "prints more than 1000000 bytes"),
        (program("exit 3"), "ended with status 3"),
        (program("echo a-secret"), "not JSON"),
        ({"type": "command", "command": ["/no/such/program"]}, "cannot be run: No such file"),
    ],
    ids=range(4),
)
async def test_a_program_that_fails(auth: dict[str, Any], reason: str) -> None:
    with pytest.raises(NoGrant, match=reason) as refused:
        await obtained(auth)
    assert "a-secret" not in str(refused.value)


async def test_a_program_that_hangs_is_ended(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    asking = asyncio.ensure_future(obtained(program(f"echo $$ > {noted}.new; mv {noted}.new {noted}; exec sleep 600")))
    await until(noted.exists)
    asking.cancel()
    await asyncio.wait([asking])
    with pytest.raises(ProcessLookupError):
        os.kill(int(noted.read_text()), 0)


# ------------------------------------------------------------------------------------------------------------- OAuth


async def test_client_credentials_go_to_the_token_endpoint_in_the_head(cloud: Scripted) -> None:
    cloud._script.append(token_reply("of-oauth", 900))
    auth = {
        "type": "oauth", "token_url": f"{cloud.url}/token", "client_id": "us: 1", "client_secret": "a-secret/of ours",
        "scopes": ["a", "b"], "audience": "models",
    }  # fmt: skip
    grant = await obtained(auth)
    assert (grant.head, 890 < left_s(grant) <= 900) == ("Authorization: Bearer of-oauth\r\n", True)
    (request,) = cloud.requests
    assert (request.method, request.path) == ("POST", "/token")
    assert form_of(request) == {"grant_type": "client_credentials", "scope": "a b", "audience": "models"}
    assert request.headers["authorization"] == "Basic dXMlM0ErMTphLXNlY3JldCUyRm9mK291cnM="  # RFC 6749, 2.3.1


@pytest.mark.parametrize(
    ("behaviour", "says"),
    [
        (answer(b'{"error": "invalid_client", "error_description": "a-secret"}', 401), "answered 401 .invalid_client."),
        (error_json(503), "answered 503"),
        (answer(b"<html>a-secret"), "not JSON"),
    ],
    ids=range(3),
)
async def test_a_token_endpoint_that_refuses(cloud: Scripted, behaviour: Any, says: str) -> None:
    cloud._script.append(behaviour)
    auth = {"type": "oauth", "token_url": f"{cloud.url}/token", "client_id": "c", "client_secret": "s"}
    with pytest.raises(NoGrant, match=says) as refused:
        await obtained(auth)
    assert "a-secret" not in str(refused.value)


# ------------------------------------------------------------------------------------------------------------ Google


def service_account(folder: Path, token_uri: str) -> Path:
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    info = {
        "type": "service_account", "project_id": "p", "private_key_id": "1", "private_key": key.decode(),
        "client_email": "gateway@p.iam.gserviceaccount.com", "client_id": "1", "token_uri": token_uri,
    }  # fmt: skip
    (folder / "google.json").write_text(json.dumps(info))
    return folder / "google.json"


async def test_a_file_of_a_service_account(cloud: Scripted, tmp_path: Path) -> None:
    cloud._script.append(token_reply("of-google", 3599))
    grant = await obtained({"type": "google", "file": str(service_account(tmp_path, f"{cloud.url}/token"))})
    assert (grant.head, 3500 < left_s(grant) < 3600) == ("Authorization: Bearer of-google\r\n", True)
    assert form_of(cloud.requests[0])["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"


async def test_the_metadata_server_of_google(cloud: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.auth.compute_engine import _metadata

    flavor = [("Metadata-Flavor", "Google")]

    async def metadata(wire: Any) -> None:
        assert wire.request.headers["metadata-flavor"] == "Google"
        if wire.request.path.endswith("/token") or "/token?" in wire.request.path:
            body = json.dumps({"access_token": "of-metadata", "expires_in": 1700, "token_type": "Bearer"}).encode()
        elif "service-accounts/default/?" in wire.request.path:
            body = b'{"email": "g@p.iam.gserviceaccount.com", "scopes": ["s"], "aliases": ["default"]}'
        else:
            body = b"p"
        kind = "application/json" if body.startswith(b"{") else "text/plain"
        await answer(body, headers=[*flavor, ("Content-Type", kind)])(wire)

    cloud._always = metadata
    monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{cloud.port}")
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", f"127.0.0.1:{cloud.port}")  # GCE_METADATA_HOST, read once
    grant = await obtained("google")
    assert grant.head == "Authorization: Bearer of-metadata\r\n"
    assert 1600 < left_s(grant) <= 1700


async def test_workload_identity_federation_of_google(cloud: Scripted, tmp_path: Path) -> None:
    cloud._script.append(token_reply("of-sts", 3600, issued_token_type="urn:ietf:params:oauth:token-type:access_token"))
    (tmp_path / "subject").write_text("a-subject-token")
    info = {
        "type": "external_account", "audience": "//iam.googleapis.com/projects/1/pools/p",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt", "token_url": f"{cloud.url}/v1/token",
        "credential_source": {"file": str(tmp_path / "subject")},
    }  # fmt: skip
    (tmp_path / "google.json").write_text(json.dumps(info))
    grant = await obtained({"type": "google", "file": str(tmp_path / "google.json")})
    assert grant.head == "Authorization: Bearer of-sts\r\n"
    assert form_of(cloud.requests[0])["subject_token"] == "a-subject-token"


async def test_google_impersonates_another_account(
    cloud: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from google.auth import iam

    end = time.time() + 1800
    said = {"accessToken": "of-another", "expireTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end))}
    cloud._script += [token_reply("of-the-file", 3599), answer(json.dumps(said).encode())]
    monkeypatch.setattr(iam, "_IAM_ENDPOINT", f"{cloud.url}/accounts/{{}}:generateAccessToken")
    file = service_account(tmp_path, f"{cloud.url}/token")
    grant = await obtained({"type": "google", "file": str(file), "impersonate": "models@p.iam.gserviceaccount.com"})
    assert (grant.head, 1700 < left_s(grant) <= 1800) == ("Authorization: Bearer of-another\r\n", True)
    asked = cloud.requests[1]
    assert asked.path == "/accounts/models@p.iam.gserviceaccount.com:generateAccessToken"
    assert asked.headers["authorization"] == "Bearer of-the-file"
    assert asked.json["scope"] == ["https://www.googleapis.com/auth/cloud-platform"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        ("{}", "no file of Google credentials"),
        ('{"type": "x"}', "another type than service_"),
    ],
)
async def test_a_file_that_is_none_of_google(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "google.json").write_text(text)
    with pytest.raises(NoGrant, match=says):
        await obtained({"type": "google", "file": str(tmp_path / "google.json")})


async def test_google_refuses(cloud: Scripted, tmp_path: Path) -> None:
    cloud._always = answer(b'{"error": "invalid_grant", "error_description": "a-secret"}', 400)
    with pytest.raises(NoGrant, match="RefreshError") as refused:
        await obtained({"type": "google", "file": str(service_account(tmp_path, f"{cloud.url}/token"))})
    assert "a-secret" not in str(refused.value)


# ------------------------------------------------------------------------------------------------------------- Azure


async def test_the_managed_identity_of_azure(cloud: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    end = int(time.time() + 86000)
    cloud._always = answer(
        json.dumps({"access_token": "of-azure", "expires_on": str(end), "token_type": "Bearer"}).encode()
    )
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"{cloud.url}/msi/token")
    monkeypatch.setenv("IDENTITY_HEADER", "a-header")
    grant = await obtained({"type": "azure", "client_id": "of-user"})
    assert grant.head == "Authorization: Bearer of-azure\r\n"
    assert grant.expires_at == pytest.approx(end, abs=5)
    (request,) = cloud.requests
    assert request.headers["x-identity-header"] == "a-header"
    assert "resource=https://cognitiveservices.azure.com" in request.path
    assert "client_id=of-user" in request.path


def entra(authority: Authority) -> Any:
    """Entra ID as a client secret and a workload identity need it: discovery of the tenant, and its token endpoint."""

    async def behaviour(wire: Any) -> None:
        here = f"https://127.0.0.1:{wire.upstream.port}"
        if "openid-configuration" in wire.request.path or "instance" in wire.request.path:
            said = {
                "token_endpoint": f"{here}/tenant/oauth2/v2.0/token", "issuer": f"{here}/tenant/v2.0",
                "authorization_endpoint": f"{here}/tenant/oauth2/v2.0/authorize",
                "tenant_discovery_endpoint": f"{here}/tenant/v2.0/.well-known/openid-configuration",
            }  # fmt: skip
            await answer(json.dumps(said).encode())(wire)
        else:
            await token_reply("of-entra", 3599, ext_expires_in=3599)(wire)

    return behaviour


@pytest.fixture
def tenant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    authority = Authority(tmp_path)
    with Scripted(prefix="", tls=authority.server_context("127.0.0.1"), always=entra(authority)) as server:
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", f"https://127.0.0.1:{server.port}")
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.ca_file))
        yield server


async def test_a_client_secret_of_entra(tenant: Scripted) -> None:
    auth = {"type": "azure", "tenant_id": "tenant", "client_id": "c", "client_secret": "a-secret-of-ours"}
    grant = await obtained(auth)
    assert (grant.head, 3500 < left_s(grant) < 3600) == ("Authorization: Bearer of-entra\r\n", True)
    form = form_of(tenant.requests[-1])
    assert form["scope"].split()[0] == "https://cognitiveservices.azure.com/.default"
    assert form["client_secret"] == "a-secret-of-ours"


async def test_a_certificate_of_entra(tenant: Scripted, tmp_path: Path) -> None:
    file = tmp_path / "principal.pem"
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain) + certificate)
    auth = {"type": "azure", "tenant_id": "tenant", "client_id": "c", "file": str(file)}
    assert (await obtained(auth)).head == "Authorization: Bearer of-entra\r\n"
    form = form_of(tenant.requests[-1])
    assertion, public = form["client_assertion"], key.public_key()
    claims = jwt.decode(assertion, public, algorithms=["RS256", "PS256"], options={"verify_aud": False})
    assert (claims["iss"], claims["sub"]) == ("c", "c")


async def test_the_workload_identity_of_azure(
    tenant: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "federated").write_text("a-federated-token")
    for name, value in (("TENANT_ID", "tenant"), ("CLIENT_ID", "c"), ("FEDERATED_TOKEN_FILE", tmp_path / "federated")):
        monkeypatch.setenv(f"AZURE_{name}", str(value))
    assert (await obtained("azure")).head == "Authorization: Bearer of-entra\r\n"
    assert form_of(tenant.requests[-1])["client_assertion"] == "a-federated-token"


# --------------------------------------------------------------------------------------------------------------- AWS

REGION = {"type": "aws", "region": "us-west-2"}


def signed(grant: Grant) -> str:
    assert not isinstance(grant.head, str)
    url = "https://bedrock-runtime.us-west-2.amazonaws.com/model/m%3A0/invoke"
    return grant.head(Unsigned("POST", url, b"{}", "bedrock", "us-west-2"))


async def test_aws_keys_of_the_environment_have_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    grant = await obtained(REGION)
    assert (grant.expires_at, grant.secrets, grant.ask_every_s) == (None, (SECRET,), None)
    assert f"Credential={ACCESS}/" in signed(grant)
    assert "/us-west-2/bedrock/aws4_request" in signed(grant)


async def test_a_profile_of_aws(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        f"[work]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n"
    )
    source = sources.of(upstream({**REGION, "profile": "work"}))
    assert source is not None
    grant = await source.obtain()
    assert (grant.secrets, grant.expires_at, grant.ask_every_s) == ((SECRET,), None, sources.AWS_ASKED_EVERY_S)
    kept = tmp_path / ".aws" / "credentials"
    kept.write_text(kept.read_text().replace(SECRET, "of-the-next-sign-in"))
    assert (await source.obtain()).secrets == ("of-the-next-sign-in",)
    with pytest.raises(NoGrant, match="ProfileNotFound"):
        await obtained({**REGION, "profile": "none"})


async def test_the_container_credentials_of_aws_rotate(cloud: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    # botocore renews from 15 minutes before the end: what lives for 10 minutes is renewed whenever it is asked.
    cloud._always = numbered(lambda number: answer(json.dumps(aws_keys(number, 600)).encode()))
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{cloud.url}/credentials")
    source = sources.of(upstream(REGION))
    assert source is not None
    first, second = await source.obtain(), await source.obtain()
    assert first.secrets[1].startswith(f"{SESSION}-")
    assert second.secrets[1] > first.secrets[1]
    assert 500 < left_s(second) <= 600
    assert f"X-Amz-Security-Token: {second.secrets[1]}" in signed(second)


async def test_a_role_of_aws_by_web_identity(cloud: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = sts_answer(1, 3600).replace(b"AssumeRole", b"AssumeRoleWithWebIdentity")
    cloud._always = answer(body, headers=[("Content-Type", "text/xml")])
    (tmp_path / "web").write_text("a-web-token")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "web"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/gateway")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", cloud.url)
    grant = await obtained(REGION)
    assert grant.secrets == (f"{SECRET}-1", f"{SESSION}-1")
    assert 3500 < left_s(grant) <= 3600
    assert form_of(cloud.requests[0])["WebIdentityToken"] == "a-web-token"


async def test_the_instance_metadata_of_aws(cloud: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = json.dumps({"Code": "Success", "Type": "AWS-HMAC", **aws_keys(1, 3600)}).encode()

    async def metadata(wire: Any) -> None:
        path, sent = wire.request.path, wire.request.headers
        if path == "/latest/api/token":
            assert wire.request.method == "PUT"
            await answer(b"a-token-of-the-instance")(wire)
            return
        assert sent["x-aws-ec2-metadata-token"] == "a-token-of-the-instance"
        await answer(keys if path.endswith("/security-credentials/gateway") else b"gateway")(wire)

    cloud._always = metadata
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"{cloud.url}/")
    grant = await obtained(REGION)
    assert (grant.secrets, grant.ask_every_s) == ((f"{SECRET}-1", f"{SESSION}-1"), sources.AWS_ASKED_EVERY_S)
    assert 3500 < left_s(grant) <= 3600


async def test_the_sign_in_of_aws_that_is_kept(
    cloud: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`aws sso login` keeps its token in a file that is named by a digest of the session's name."""
    from botocore.tokens import SSOTokenProvider

    (tmp_path / ".aws" / "sso" / "cache").mkdir(parents=True)
    start = "https://ours.awsapps.com/start"
    (tmp_path / ".aws" / "config").write_text(
        "[profile work]\nsso_session = ours\nsso_account_id = 123456789012\nsso_role_name = gateway\n"
        f"[sso-session ours]\nsso_region = us-east-1\nsso_start_url = {start}\n"
    )
    kept = tmp_path / ".aws" / "sso" / "cache" / f"{hashlib.sha1(b'ours', usedforsecurity=False).hexdigest()}.json"

    def sign_in(lives_s: float) -> None:
        end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + lives_s))
        kept.write_text(
            json.dumps({"startUrl": start, "region": "us-east-1", "accessToken": "a-sso", "expiresAt": end})
        )

    end_ms = int((time.time() + 3600) * 1e3)
    role = {"accessKeyId": ACCESS, "secretAccessKey": SECRET, "sessionToken": SESSION, "expiration": end_ms}
    cloud._always = answer(json.dumps({"roleCredentials": role}).encode())
    monkeypatch.setenv("AWS_ENDPOINT_URL_SSO", cloud.url)
    monkeypatch.setattr(SSOTokenProvider, "_SSO_TOKEN_CACHE_DIR", str(kept.parent))  # below HOME, read once
    sign_in(-60)
    with pytest.raises(NoGrant, match="TokenRetrievalError"):
        await obtained({**REGION, "profile": "work"})
    sign_in(3600)
    grant = await obtained({**REGION, "profile": "work"})
    assert grant.secrets == (SECRET, SESSION)
    assert 3500 < left_s(grant) <= 3600
    (request,) = cloud.requests
    assert request.headers["x-amz-sso_bearer_token"] == "a-sso"
    assert "role_name=gateway" in request.path


async def test_a_role_of_aws_that_is_assumed(cloud: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud._always = answer(sts_answer(1, 3600), headers=[("Content-Type", "text/xml")])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", cloud.url)
    grant = await obtained({**REGION, "role_arn": "arn:aws:iam::1:role/gateway"})
    assert grant.secrets == (f"{SECRET}-1", f"{SESSION}-1")
    assert form_of(cloud.requests[0])["RoleArn"] == "arn:aws:iam::1:role/gateway"


async def test_keys_of_the_file_count_more_than_those_of_the_environment(
    cloud: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOTHER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", cloud.url)
    own = {**REGION, "access_key_id": ACCESS, "secret_access_key": SECRET, "session_token": SESSION}
    grant = await obtained(own)
    assert grant.secrets == (SECRET, SESSION)
    assert f"Credential={ACCESS}/" in signed(grant)
    cloud._always = answer(sts_answer(1, 3600), headers=[("Content-Type", "text/xml")])
    await obtained({**own, "role_arn": "arn:aws:iam::1:role/gateway", "external_id": "a team's"})
    asked = cloud.requests[0]
    assert form_of(asked)["ExternalId"] == "a team's"
    assert f"Credential={ACCESS}/" in asked.headers["authorization"]


async def test_aws_without_credentials_says_so() -> None:
    with pytest.raises(NoGrant, match="botocore finds no credentials"):
        await obtained(REGION)


# ----------------------------------------------------------------------------------------------------------- threads


async def test_a_slow_library_holds_up_nothing_and_is_not_asked_twice() -> None:
    may_end, asked = threading.Event(), []

    class Slow:
        def obtain(self) -> Grant:
            asked.append(threading.current_thread())
            may_end.wait()
            return Grant("late", ("late",))

    source = sources.InThread(Slow())
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await source.obtain()
    may_end.set()
    assert (await source.obtain()).head == "late"
    assert len(asked) == 1
    assert asked[0].daemon


async def test_an_error_of_a_library_is_logged_by_its_kind_alone() -> None:
    class Failing:
        def obtain(self) -> Grant:
            try:
                raise OSError("https://user:a-secret@host")
            except OSError as error:
                raise RuntimeError("a-secret") from error

    with pytest.raises(NoGrant) as refused:
        await sources.InThread(Failing()).obtain()
    assert str(refused.value) == "RuntimeError by OSError"


async def test_a_server_that_says_nothing_is_waited_for_off_the_loop(cloud: Scripted, tmp_path: Path) -> None:
    cloud._script.append(silent)
    path = service_account(tmp_path, f"{cloud.url}/token")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await obtained({"type": "google", "file": str(path)})


def test_each_kind_but_the_key_has_a_source() -> None:
    more: dict[str, dict[str, Any]] = {
        "command": {"command": ["x"]}, "aws": {"region": "r"},
        "oauth": {"token_url": "https://t.example/", "client_id": "c", "client_secret": "s"},
    }  # fmt: skip
    kinds = ("key", "command", "oauth", "google", "azure", "aws")
    made = [sources.of(upstream({"type": kind, **more.get(kind, {})})) for kind in kinds]
    assert [source is None for source in made] == [True, *[False] * 5]
