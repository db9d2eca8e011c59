"""Known secrets stand everywhere, everything goes wrong, and then all that is left behind is searched for them.

What is searched: all output and every answer, metrics, the journal, the store (each file, or each key of Redis), and of
each process its arguments, its title and its environment. A secret may stand where it belongs: in the configuration,
in the requests to its upstream, and, where the operator has put it there, in the environment. A key's SHA-256 may
stand anywhere.
"""

from __future__ import annotations

import base64
import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.proxy import ConnectProxy, refuse
from tests.fakes.redis_servers import RedisServer
from tests.fakes.resp import flat
from tests.fakes.scripted import (
    Authority,
    Behaviour,
    Scripted,
    answer,
    close_without_answer,
    cut_stream,
    dead_port,
    error_json,
    not_http,
    ok_json,
    raw,
    stream,
)
from tests.flows.client import Answer
from tests.flows.gateway_process import (
    COMPLETIONS,
    WITHOUT_TOKENS,
    Gateway,
    children,
    eventually,
    model,
    run,
    secret,
    settings,
)

SECRETS: Mapping[str, str] = {
    "the key of a client": secret("alice"),
    "the key of a client, from a file": "sk-gw-FromAFile-7c1be0a4d2f94e55",
    "the key of a client, from the environment": "sk-gw-FromTheEnvironment-91ab33c0",
    "a wrong key": "sk-wrong-WrongButAlmost-0a9b8c7d6e5f",
    "the key of an upstream": "sk-up-One-e1c0ffee5ca1ab1e",
    "the other key of an upstream": "sk-up-Two-0ddba11c0c0a77",
    "a header of an upstream": "Org-Header-5ecret77aa",
    "the password of a proxy": "Pr0xy/pass:w0rd?77bb",
    "the password of the store": "R3dis/pass@w0rd#77cc",
    "the admin token": "Admin-t0ken-77dd-0123456789",
    "the token of metrics": "Metrics-t0ken-77ee-0123456789",
    "the token of the webhook": "Webhook-t0ken-77ff",
}
FILE_KEY, ENV_KEY = SECRETS["the key of a client, from a file"], SECRETS["the key of a client, from the environment"]
WRONG = SECRETS["a wrong key"]
ONE, TWO = SECRETS["the key of an upstream"], SECRETS["the other key of an upstream"]
HEADER, PROXY = SECRETS["a header of an upstream"], SECRETS["the password of a proxy"]
STORE, WEBHOOK = SECRETS["the password of the store"], SECRETS["the token of the webhook"]
ADMIN, METRICS = SECRETS["the admin token"], SECRETS["the token of metrics"]
ECHO = f"Incorrect API key provided: {ONE} or {TWO}, with {HEADER}, Bearer {ONE}."
CHUNK = {"id": "c", "model": "m", "choices": [{"index": 0, "text": "Hi", "finish_reason": None}]}


def forms(hidden: str) -> Iterator[bytes]:
    """The ways in which a secret may be written."""
    yield hidden.encode()
    yield quote(hidden, safe="").encode()
    yield hidden.encode().hex().encode()
    for before in ("", ":", "u:", "ga:"):  # whichever way the groups of three fall
        spelt = base64.b64encode(before.encode() + hidden.encode())
        yield spelt[4 : len(spelt) // 4 * 4 - 4]


def found_in(data: bytes, *, but: tuple[str, ...] = ()) -> list[str]:
    """The secrets that stand in these bytes."""
    return [name for name, hidden in SECRETS.items() if hidden not in but and any(one in data for one in forms(hidden))]


JSON = "Host: x\r\nContent-Type: application/json\r\n"


class Search:
    """All that has been seen, by where."""

    def __init__(self) -> None:
        self.leaks: list[str] = []
        self.seen = 0

    def look(self, where: str, data: bytes, *, but: tuple[str, ...] = ()) -> None:
        self.seen += len(data)
        for name in found_in(data, but=but):
            at = min(data.find(one) for one in forms(SECRETS[name]) if one in data)
            self.leaks.append(f"{name} in {where}: ...{data[max(0, at - 90) : at + 60]!r}")

    def look_at_answer(self, where: str, got: Answer, *, but: tuple[str, ...] = ()) -> Answer:
        self.look(where, repr(got.header_lines).encode() + got.body, but=but)
        return got

    def look_at_files(self, folder: Path) -> None:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.look(f"the file {path.name}", path.read_bytes())

    def look_at_redis(self, server: RedisServer) -> None:
        names = str(server.cli("KEYS", "*")).split()
        assert names
        read = {
            "string": ("GET", ()), "hash": ("HGETALL", ()), "set": ("SMEMBERS", ()), "list": ("LRANGE", (0, -1)),
            "zset": ("ZRANGE", (0, -1)), "stream": ("XRANGE", ("-", "+")),
        }  # fmt: skip
        for name in names:
            verb, more = read[server.cli("TYPE", name).strip()]
            self.look(f"the key {name} of Redis", name.encode() + flat(server.call(verb, name, *more)).encode())

    def look_at_process(self, pid: int, given: tuple[str, ...]) -> None:
        place = Path("/proc") / str(pid)
        if not place.exists():  # another system than Linux; ps shows the arguments in test_proxy.py
            return
        for name in ("cmdline", "comm", "environ"):
            but = given if name == "environ" else ()
            self.look(f"{name} of process {pid}", (place / name).read_bytes(), but=but)


# ---------------------------------------------------------------------------------------------------------- the stage

SAYINGS: dict[str, Behaviour] = {
    "a 400": error_json(400, message=ECHO),
    "a 404": error_json(404, message=ECHO, code=ONE, param=HEADER),
    "a 401": error_json(401, message=ECHO),
    "a 403": error_json(403, message=ECHO),
    "a 422": error_json(422, message=ECHO, type=ONE),
    "a 429": error_json(429, message=ECHO),
    "a 429, spent": error_json(429, message=ECHO, code="insufficient_quota"),
    "a 500": error_json(500, message=ECHO),
    "a page of HTML": answer(f"<html>{ECHO}</html>".encode(), 502, [("Content-Type", "text/html")]),
    "a 400 of HTML": answer(f"<html>{ECHO}</html>".encode(), 400, [("Content-Type", "text/html")]),
    "JSON of another shape": answer(json.dumps({"detail": [{"msg": ECHO}]}).encode(), 422),
    "text": answer(ECHO.encode(), 200, [("Content-Type", "text/plain")]),
    "half of it": answer(f'{{"id": "{ONE}'.encode(), 200),
    "an error inside a 200": ok_json({"error": {"message": ECHO, "type": "server_error", "code": 500}}),
    "a refusal inside a 200": ok_json({"error": {"message": ECHO, "type": "invalid_request_error", "code": 400}}),
    "an error inside a stream": stream([CHUNK, {"error": {"message": ECHO, "type": "server_error"}}]),
    "an error first in a stream": stream([{"error": {"message": ECHO, "code": 400}}]),
    "fields in a stream": stream([CHUNK, f"event: {ONE}\nid: {TWO}\n\n".encode()]),
    "a comment in a stream": stream([CHUNK, f": {ECHO}\n\n".encode(), CHUNK]),
    "words in a stream": stream([CHUNK, f"data: {ECHO}\n\n".encode(), CHUNK]),
    "a stream that is cut": cut_stream([CHUNK]),
    "a redirect": answer(b"", 302, [("Location", f"http://u:{ONE}@127.0.0.1/{HEADER}")]),
    "a head with a line that is none": raw(f"HTTP/1.1 200 OK\r\n{ECHO}\r\n\r\n".encode(), then_close=True),
    "a status that is none": raw(f"HTTP/1.1 {ONE} OK\r\n\r\n".encode(), then_close=True),
    "headers": ok_json(headers=[("x-leak", ONE), ("set-cookie", HEADER), ("www-authenticate", TWO), ("server", ONE)]),
    "not HTTP": not_http,
    "nothing": close_without_answer,
}


def configuration(folder: Path, upstream: str, places: Mapping[str, str], **changes: Any) -> dict[str, Any]:
    (folder / "key").write_text(f"{FILE_KEY}\n")
    (folder / "token").write_text(f"{METRICS}\n")
    keys = [
        {"id": "alice", "secret": secret("alice"), "quotas": [{"requests": 10**6, "per": "day"}]},
        {"id": "filed", "secret": f"${{file:{folder / 'key'}}}", "quotas": [{"requests": 1, "per": "day"}]},
        {"id": "given", "secret": "${CLIENT_KEY}", "on_exceeded": "shadow", "quotas": [{"tokens": 1, "per": "month"}]},
    ]
    ours = {"api_key": ONE, "headers": {"X-Organization": HEADER}, "timeouts": {"connect_s": 2, "head_s": 2}}
    upstreams = {
        "main": {
            "api_key": None, "api_keys": [ONE, TWO], "headers": {"X-Organization": HEADER}, "timeouts": {"head_s": 2},
        },
        **{name: {**ours, "base_url": place} for name, place in places.items()},
        "dead": {**ours, "base_url": f"http://127.0.0.1:{dead_port()}/v1"},
        "refused": {**ours, "base_url": "https://up.example/v1", "proxy": "${PROXY}"},
        "unproxied": {**ours, "base_url": "https://up.example/v1", "proxy": f"http://gate:{quote(PROXY, safe='')}"
                      f"@127.0.0.1:{dead_port()}"},
    }  # fmt: skip
    models = {name: model("completions", name) for name in upstreams if name != "main"}
    models["*"] = model("completions")
    server = {"workers": 2, "client_head_timeout_s": 1, "client_body_timeout_s": 1}
    alerts = {"webhook": f"http://127.0.0.1:{dead_port()}/services/{WEBHOOK}?token={WEBHOOK}"}
    return settings(
        upstream, keys=keys, upstreams=upstreams, models=models, server=server, alerts=alerts,
        admin={"token": ADMIN}, metrics={"token": f"${{file:{folder / 'token'}}}"}, **changes,
    )  # fmt: skip


def ask(gateway: Gateway, search: Search, who: str, path: str = "/v1/completions", **more: Any) -> Answer:
    body = {"model": COMPLETIONS, "prompt": "Hello"} | more
    got = gateway.post(path, body, key=None, headers={"Authorization": f"Bearer {who}"})
    return search.look_at_answer(f"the answer to {more}", got)


def provoke_upstreams(gateway: Gateway, search: Search, upstream: ScriptedUpstream) -> None:
    for name, saying in SAYINGS.items():
        for is_stream in (False, True):
            upstream.answer_with(always=saying)
            got = gateway.complete(stream=is_stream)
            search.look_at_answer(f"the answer after {name}, stream: {is_stream}", got)
    upstream.answer_with(always=ok_json())
    for name in [name for name in gateway.config["upstreams"] if name != "main"]:
        got = search.look_at_answer(f"the answer of {name}", gateway.complete(model=name))
        assert got.status in (502, 504), (name, got)


def provoke_by_requests(gateway: Gateway, search: Search) -> None:
    """What a client may do with a key, right or wrong, in every place but the one where it belongs."""
    for key in (secret("alice"), WRONG):
        good = {"Authorization": f"Bearer {secret('alice')}"}
        as_json = {"Content-Type": "application/json"}
        body = {"model": COMPLETIONS, "prompt": "Hello"}
        for where, method, path, content, headers in (
            ("the right place", "POST", "/v1/completions", body, {"Authorization": f"Bearer {key}"}),
            ("another scheme", "POST", "/v1/completions", body, {"Authorization": f"Basic {key}"}),
            ("no scheme", "GET", "/v1/models", None, {"Authorization": key}),
            ("the query", "POST", f"/v1/completions?api_key={key}", body, good),
            ("the query alone", "GET", f"/v1/models?key={key}", None, {}),
            ("the path", "GET", f"/v1/{key}/models", None, {}),
            ("the path, with a key", "GET", f"/{key}/v1/models", None, good),
            ("the name of a model", "GET", f"/v1/models/{key}", None, good),
            ("a parameter", "POST", "/v1/completions", body | {"api_key": key, "user": key}, good),
            ("a parameter's name", "POST", "/v1/completions", body | {key: 1}, good),
            ("a wrong value", "POST", "/v1/completions", body | {"n": key, "logit_bias": {key: key}}, good),
            ("a wrong number", "POST", "/v1/completions", body | {"logit_bias": {key: 1000}}, good),
            ("what is no JSON", "POST", "/v1/completions", f'{{"model": {key}'.encode(), good),
            ("twice", "POST", "/v1/completions", f'{{"{key}": 1, "{key}": 2}}'.encode(), good),
            ("the content type", "POST", "/v1/completions", body, {**good, "Content-Type": key}),
            ("the coding", "POST", "/v1/completions", body, {**good, **as_json, "Content-Encoding": key}),
            ("the method", key.replace("-", ""), "/v1/completions", None, good),
            ("a cookie", "POST", "/v1/completions", body, {**good, "Cookie": f"key={key}", "X-Api-Key": key}),
            ("the admin API", "GET", "/admin/api/usage", None, {"Authorization": f"Bearer {key}"}),
            ("a report's group", "GET", f"/admin/api/usage?group_by={key}", None, {"Authorization": f"Bearer {ADMIN}"}),
            ("the metrics", "GET", "/metrics", None, {"Authorization": f"Bearer {key}"}),
        ):  # fmt: skip
            got = gateway.send(method, path, content, key=None, headers=headers)
            search.look_at_answer(f"the answer to a key in {where}", got, but=(key,))  # its own text
        if key != WRONG:  # with "*" every other name may be a model
            got = gateway.complete(model=key)
            assert got.error["code"] == "model_not_found"
        line = f"Authorization: Bearer {key}\r\n"
        for head in (
            f"GET /v1/models HTTP/1.1\r\nHost: x\r\n{line}{line}\r\n",
            f"GET /v1/models HTTP/1.1\r\nHost: x\r\n{line} folded\r\n\r\n",
            f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization : Bearer {key}\r\n\r\n",
            f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\0\r\n\r\n",
            f"GET /v1/models HTTP/9.9\r\nHost: x\r\n{line}\r\n",
            f"GET http://u:{key}@[::/v1/models HTTP/1.1\r\nHost: x\r\n{line}\r\n",
            f"GET /v1/models#{key} HTTP/1.1\r\nHost: x\r\n{line}\r\n",
            f"CONNECT {key}:443 HTTP/1.1\r\nHost: x\r\n{line}\r\n",
            f"{key} / HTTP/1.1\r\n\r\n",
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{line}Content-Length: 5\r\nContent-Length: {key}\r\n\r\n",
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{line}Content-Length: 5\r\nTransfer-Encoding: {key}\r\n\r\n",
            f"POST /v1/completions HTTP/1.1\r\n{line}{JSON}Transfer-Encoding: chunked\r\n\r\n{key}\r\n",
            f"GET /v1/models HTTP/1.1\r\nHost: x\r\n{line}X: {'a' * 9000}\r\n\r\n",
            f"GET /v1/models HTTP/1.1\r\nHost: x\r\n{line}",
        ):
            with gateway.connect() as client:
                client.send(head.encode())
                client.socket.shutdown(1)
                search.look(f"the answer to {head[:40]!r}", client.read_to_end())


def everything_said(gateway: Gateway, search: Search) -> None:
    """Reports and metrics."""
    for path in ("usage?group_by=key,model,upstream", "usage?format=csv", "calls?limit=1000", "quotas"):
        bearer = {"Authorization": f"Bearer {ADMIN}"}
        got = gateway.get(f"/admin/api/{path}", key=None, headers=bearer)
        assert got.status in (200, 503)
        search.look_at_answer(f"the report {path}", got)
    got = gateway.get("/metrics", key=None, headers={"Authorization": f"Bearer {METRICS}"})
    assert got.status == 200
    search.look_at_answer("the metrics", got)
    for path in ("/v1/key", "/v1/models", "/openapi.json", "/readyz"):
        search.look_at_answer(path, gateway.get(path))


@pytest.fixture
def behind_tls(tmp_path: Path) -> Iterator[Scripted]:
    """An upstream with a certificate that is not trusted."""
    with Scripted(always=ok_json(), tls=Authority(tmp_path).server_context("127.0.0.1")) as upstream:
        yield upstream


@pytest.mark.timeout(180)
@pytest.mark.parametrize("style", ["json on Redis", "text on the embedded store"])
def test_no_secret_is_left_anywhere(
    style: str, start_gateway: StartsGateways, upstream: ScriptedUpstream, behind_tls: Scripted, tmp_path: Path
) -> None:
    upstream.answer_with(always=ok_json())
    search = Search()
    is_redis = "Redis" in style
    with ConnectProxy(always=refuse(407, f"X-Echo: {PROXY}")) as proxy:
        env = {"CLIENT_KEY": ENV_KEY, "PROXY": proxy.url_with(f"gate:{quote(PROXY, safe='')}")}
        redis = RedisServer(tmp_path / "redis", password=STORE) if is_redis else None
        try:
            url = redis.url if redis else f"embedded:{tmp_path / 'data'}"
            config = configuration(
                tmp_path, upstream.url, {"untrusted": behind_tls.url},
                store={"url": url, "journal_dir": str(tmp_path / "journal")},
            )  # fmt: skip
            config["server"]["access_log"] = style.split()[0]
            gateway = start_gateway(config, env=env)
            provoke_upstreams(gateway, search, upstream)
            provoke_by_requests(gateway, search)
            for who in (FILE_KEY, FILE_KEY, ENV_KEY, ENV_KEY):
                ask(gateway, search, who)  # until their quotas are used up, which causes alerts to a webhook
            ask(gateway, search, secret("alice"), prompt="long " * 300_000)  # parsed in another process
            eventually(lambda: "webhook" in gateway.stderr)
            workers = gateway.workers()
            for pid in (gateway.process.pid, *workers, *[each for worker in workers for each in children(worker)]):
                search.look_at_process(pid, given=(ENV_KEY, PROXY))
            os.kill(workers[0], signal.SIGKILL)
            eventually(lambda: gateway.stderr.count("starting another") == 1)
            eventually(lambda: len(gateway.workers()) == 2)
            everything_said(gateway, search)
            if redis:
                search.look_at_redis(redis)
                redis.kill()
                ask(gateway, search, secret("alice"))
                everything_said(gateway, search)
                redis.restart()
                eventually(lambda: ask(gateway, search, secret("alice")).status == 200)
            gateway.kill(signal.SIGTERM)
            assert gateway.wait() == 0
            for name in ("stdout", "stderr"):
                search.look(f"the gateway's {name}", (gateway.folder / name).read_bytes())
            assert gateway.stdout.count("\n") > 50
            search.look_at_files(tmp_path / "journal")
            search.look_at_files(tmp_path / "data")
        finally:
            if redis:
                redis.kill()
    assert not search.leaks, "\n".join(search.leaks)
    assert search.seen > 100_000


BUG = f"""
import gateway.api.validate as params

def restrict(asked, *more):
    try:
        raise KeyError({ADMIN!r})
    except KeyError as error:
        raise ValueError(asked.document.text) from error

params.restrict = restrict
"""


def test_a_bug_of_ours_is_logged_without_what_it_says(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    """An exception of a library may contain its input. The log has the place of the exception, not its message."""
    (tmp_path / "sitecustomize.py").write_text(BUG)
    path = os.pathsep.join([str(tmp_path), *filter(None, WITHOUT_TOKENS["PYTHONPATH"].split(os.pathsep))])
    gateway = Gateway(tmp_path / "started", settings(upstream.url), env={"PYTHONPATH": path})
    try:
        got = gateway.complete(user=WRONG)
        assert (got.status, got.error["type"]) == (500, "server_error")
        assert not found_in(got.body)
        eventually(lambda: got.id in gateway.stderr)
        assert "ValueError" in gateway.stderr
        assert "sitecustomize.py" in gateway.stderr
        assert not found_in((gateway.stderr + gateway.stdout).encode())
        assert gateway.get("/v1/models").status == 200
    finally:
        gateway.end()


@pytest.mark.parametrize("command", ["check", "serve"])
@pytest.mark.parametrize("trouble", ["a wrong password", "nobody there", "faults everywhere", "no YAML"])
def test_an_invalid_configuration_is_reported_without_its_secrets(
    command: str, trouble: str, tmp_path: Path, redis_server: RedisServer
) -> None:
    redis_server.call("CONFIG", "SET", "requirepass", "another")
    redis_server.password = "another"
    port = dead_port() if trouble == "nobody there" else redis_server.port
    store = {"url": f"redis://:{quote(STORE, safe='')}@127.0.0.1:{port}/0", "journal_dir": str(tmp_path / "journal")}
    config = configuration(tmp_path, "http://127.0.0.1:9/v1", {}, store=store)
    if trouble == "faults everywhere":
        config["store"]["url"] = f"redis://:{STORE}@127.0.0.1/0"
        config["keys"] += [
            {"id": "alice", "secret": f"{WRONG} {WRONG}"},
            {"id": "B", "secret": WRONG[:9], "sha256": WRONG},
        ]
        config["upstreams"]["main"] |= {
            "api_key": ONE,
            "base_url": f"https://u:{ONE}@up/v1",
            "headers": {"Host": HEADER},
        }
        config["upstreams"]["dead"] |= {"api_keys": [TWO, TWO], "proxy": f"socks5://u:{PROXY}@p", "timeouts": ONE}
        config["admin"] = {"token": [ADMIN], "viewer_token": ADMIN}
        config["metrics"]["token"] = {METRICS: 1}
        config["alerts"] = {"webhook": f"ftp://{WEBHOOK}", "proxy": f"http://u:{PROXY}@p:x"}
    text = yaml.safe_dump(config)
    (tmp_path / "gateway.yaml").write_text(text.replace(ONE, f"!{ONE}!{TWO}", 1) if trouble == "no YAML" else text)
    env = {"CLIENT_KEY": ENV_KEY, "PROXY": f"http://u:{quote(PROXY, safe='')}@127.0.0.1:1"}
    if command == "serve" and trouble == "nobody there":
        gateway = Gateway(tmp_path / "started", config, env=env)  # it is ready, but refuses calls with a retry time
        try:
            assert gateway.complete().error["code"] == "store_unavailable"
            said = gateway.stdout + gateway.stderr
        finally:
            gateway.end()
    else:
        done = run(command, "--config", str(tmp_path / "gateway.yaml"), env=env)
        assert done.returncode in ((0,) if trouble == "nobody there" else (1, 2)), done
        said = done.stdout + done.stderr
    assert said
    assert "Traceback" not in said
    assert not found_in(said.encode()), said
