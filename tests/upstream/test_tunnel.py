"""Upstreams behind an HTTP proxy: the tunnel, the credentials, and every way in which a proxy can fail.

Names are looked up by the proxy, so that `api.example.com` is here whatever the fake proxy leads to.
"""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from gateway.records import Failure, Fault, Phase
from tests.fakes import scripted
from tests.fakes.proxy import ESTABLISHED, ConnectProxy, die_in_handshake, refuse, tunnel
from tests.fakes.scripted import Authority, Behaviour, Scripted, dead_port, raw, until

from .recorder import acquired, ask, begin, pool_of

PLAIN = "http://api.example.com:8000/v1"
SECURE = "https://api.example.com/v1"


async def failure_at(proxy: str, url: str = PLAIN, **changes: object) -> Failure:
    """What becomes of a dial through this proxy; no place is lost over it."""
    pool = pool_of(url, 1, proxy=proxy, **changes)
    failure = await pool.acquire()
    assert isinstance(failure, Failure), failure
    assert failure.phase is Phase.CONNECT
    assert "0 in flight, 0 idle, 0 dialling, 0 waiting, of 1>" in repr(pool)
    await pool.close()
    return failure


async def failure_with(*script: Behaviour, url: str = PLAIN, userinfo: str = "", **changes: object) -> Failure:
    """The same with a proxy that does this; it has seen us hang up."""
    async with ConnectProxy(*script) as proxy:
        failure = await failure_at(proxy.url_with(userinfo) if userinfo else proxy.url, url, **changes)
        await until(lambda: proxy.open_now == 0)
        assert str(proxy.port) in failure.detail  # the operator's log says which proxy
        return failure


# ----------------------------------------------------------------------------------------------------- through it


async def test_plain_upstream() -> None:
    async with Scripted(always=scripted.ok_json()) as upstream, ConnectProxy(tunnel(upstream.port)) as proxy:
        pool = pool_of(PLAIN, proxy=proxy.url)
        for _ in range(3):
            ear = await ask(pool)
            assert ear.failure is None
            assert ear.body
        assert proxy.requests[0].head == b"CONNECT api.example.com:8000 HTTP/1.1\r\nHost: api.example.com:8000\r\n\r\n"
        assert (proxy.connections, upstream.connections, upstream.hits) == (1, 1, 3)  # reused through the tunnel
        request = upstream.requests[0]
        assert (request.path, request.headers["host"]) == ("/v1/completions", "api.example.com:8000")
        assert "proxy-authorization" not in request.headers
        await pool.close()


async def test_tls_upstream(authority: Authority) -> None:
    """The certificate is checked against the upstream's name, and that name is what the handshake asks for."""
    named: list[str | None] = []
    context = authority.server_context("api.example.com")
    context.sni_callback = lambda _socket, name, _context: named.append(name)
    always = scripted.stream([{"text": "x" * 50_000}] * 20)
    async with Scripted(always=always, tls=context) as upstream, ConnectProxy(tunnel(upstream.port)) as proxy:
        pool = pool_of(SECURE, proxy=proxy.url, ca_file=str(authority.ca_file))
        for _ in range(2):
            ear = await ask(pool)
            assert ear.failure is None
            assert len(ear.body) > 1_000_000
            assert ear.body.endswith(b"data: [DONE]\n\n")
        assert proxy.targets == ["api.example.com:443"]
        assert named == ["api.example.com"]
        assert upstream.requests[0].headers["host"] == "api.example.com"
        await pool.close()
        await until(lambda: upstream.open_now == 0)


@pytest.mark.parametrize(("url", "target"), [("http://[::1]:8000/v1", "[::1]:8000"), ("https://[::1]/v1", "[::1]:443")])
async def test_address_of_ipv6_is_bracketed(url: str, target: str, authority: Authority) -> None:
    context = authority.server_context("::1") if url.startswith("https") else None
    async with (
        Scripted(scripted.ok_json(), tls=context) as upstream,
        ConnectProxy(tunnel(upstream.port)) as proxy,
    ):
        pool = pool_of(url, proxy=proxy.url, ca_file=str(authority.ca_file))
        assert (await ask(pool)).failure is None
        assert proxy.targets == [target]
        await pool.close()
        await until(lambda: upstream.open_now == 0)


async def test_credentials_go_to_the_proxy_alone() -> None:
    async with (
        Scripted(scripted.ok_json()) as upstream,
        ConnectProxy(tunnel(upstream.port, userinfo="me@corp:pä:ss/word")) as proxy,
    ):
        pool = pool_of(PLAIN, proxy=proxy.url_with("me%40corp:p%C3%A4:ss%2Fword"), api_key="sk-up")
        assert (await ask(pool)).failure is None
        assert "proxy-authorization" not in upstream.requests[0].headers
        assert "sk-up" not in proxy.requests[0].head.decode()
        assert "ss/word" not in repr(pool)
        hidden = dict(pool.hidden)
        assert (hidden["pä:ss/word"], hidden["127.0.0.1"]) == ("***", "the proxy")
        await pool.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 Connection established\r\n\r\n",
        b"HTTP/1.1 204\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",  # of no meaning here (RFC 9110)
        b"HTTP/1.1 200 OK\nVia: old\n\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + ESTABLISHED,
        b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 60_000 + b"\r\n\r\n",
    ],
    ids=["1.0", "204", "bare-lf", "interim", "long"],
)
async def test_answers_that_open_a_tunnel(answer: bytes) -> None:
    async with Scripted(scripted.ok_json()) as upstream, ConnectProxy(tunnel(upstream.port, answer)) as proxy:
        pool = pool_of(PLAIN, proxy=proxy.url)
        assert (await ask(pool)).failure is None
        await pool.close()


async def test_answer_may_be_cut_at_every_byte() -> None:
    whole = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nVia: x\r\n\r\n"

    async def dribbled(wire: scripted.Wire) -> None:
        wire.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await scripted.dribble(whole, 0.001)(wire)
        await tunnel(upstream.port, b"")(wire)

    async with Scripted(scripted.ok_json()) as upstream, ConnectProxy(dribbled) as proxy:
        pool = pool_of(PLAIN, proxy=proxy.url)
        assert (await ask(pool)).failure is None
        await pool.close()


async def test_many_tunnels_at_once(authority: Authority) -> None:
    context = authority.server_context("api.example.com")
    async with (
        Scripted(always=scripted.after(0.02, scripted.ok_json()), tls=context) as upstream,
        ConnectProxy(always=tunnel(upstream.port)) as proxy,
    ):
        pool = pool_of(SECURE, 5, proxy=proxy.url, ca_file=str(authority.ca_file))
        ears = await asyncio.gather(*(ask(pool) for _ in range(20)))
        assert all(ear.failure is None for ear in ears)
        assert (upstream.most_open, proxy.connections) == (5, 5)
        await pool.close()
        await until(lambda: upstream.open_now == 0)


async def test_connection_whose_tunnel_has_ended_is_not_used_again() -> None:
    async with (
        Scripted(always=scripted.keepalive_then_close) as upstream,
        ConnectProxy(always=tunnel(upstream.port)) as proxy,
    ):
        pool = pool_of(PLAIN, proxy=proxy.url)
        for number in (1, 2):
            assert (await ask(pool)).failure is None
            assert proxy.connections == number
            await until(lambda: "0 idle" in repr(pool))
        await pool.close()


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (301, "the proxy refuses (status 301)"),
        (400, "the proxy refuses (status 400)"),
        (403, "the proxy does not allow this host and port (status 403)"),
        (405, "the proxy does not allow CONNECT (status 405)"),
        (407, "the proxy requires credentials, and its address has none (status 407)"),
        (502, "the proxy cannot reach it (status 502)"),
        (503, "the proxy cannot reach it now (status 503)"),
        (504, "the proxy cannot reach it in time (status 504)"),
    ],
)
@pytest.mark.parametrize("url", [PLAIN, SECURE])
async def test_refusal(status: int, words: str, url: str) -> None:
    failure = await failure_with(refuse(status), url=url)
    assert failure.fault is Fault.CONNECT
    assert failure.detail.startswith("cannot connect to api.example.com:")
    assert failure.detail.endswith(f": {words}")


@pytest.mark.parametrize("userinfo", ["me:wrong-secret", "wrong-secret", ":wrong-secret"])
async def test_wrong_credentials(userinfo: str) -> None:
    failure = await failure_with(tunnel(0, userinfo="me:right"), userinfo=userinfo)
    assert failure.fault is Fault.CONNECT
    assert failure.detail.endswith(": the proxy refuses the credentials (status 407)")
    assert "secret" not in failure.detail


async def test_next_dial_is_good_after_a_refusal() -> None:
    async with Scripted(scripted.ok_json()) as upstream, ConnectProxy(refuse(503), tunnel(upstream.port)) as proxy:
        pool = pool_of(PLAIN, 1, proxy=proxy.url)
        assert isinstance(await pool.acquire(), Failure)
        assert (await ask(pool)).failure is None
        await pool.close()


# ------------------------------------------------------------------------------------------------- broken proxies


async def silent(wire: scripted.Wire) -> None:
    await wire.until_gone()


@pytest.mark.parametrize("url", [PLAIN, SECURE])
@pytest.mark.parametrize(
    "behaviour",
    [
        silent,
        scripted.dribble(ESTABLISHED.replace(b"\r\n\r\n", b"\r\nX-Slow: " + b"z" * 10_000), 0.01),
        raw(*[b"HTTP/1.1 100 Continue\r\n\r\n"] * 1000, delay_s=0.01),
    ],
    ids=["silent", "dribbled", "interim-for-ever"],
)
async def test_time_limit_covers_the_whole_exchange(behaviour: Behaviour, url: str) -> None:
    failure = await failure_with(behaviour, url=url, connect_s=0.1)
    assert failure.fault is Fault.TIMEOUT
    assert failure.detail.startswith("no connection to api.example.com:")
    assert failure.detail.endswith(" within 0.1 s")


async def test_time_limit_covers_the_handshake_in_the_tunnel() -> None:
    async def deaf(wire: scripted.Wire) -> None:
        await wire.write(ESTABLISHED)
        await wire.until_gone()

    failure = await failure_with(deaf, url=SECURE, connect_s=0.1)
    assert failure.fault is Fault.TIMEOUT


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (raw(b"SSH-2.0-OpenSSH_9.2\r\n"), "does not answer in HTTP/1"),
        (raw(b"\x15\x03\x03\x00\x02\x02\x46"), "does not answer in HTTP/1"),
        (raw(b"\r\n" + ESTABLISHED), "does not answer in HTTP/1"),
        (raw(b"HTTP/2 200\r\n\r\n"), "does not answer in HTTP/1"),
        (raw(b"HTTP/1.1 2000 OK\r\n\r\n"), "does not answer in HTTP/1"),
        (raw(b"HTTP/1.1 OK\r\n\r\n"), "does not answer in HTTP/1"),
        (raw(b"HTTP/1.1 101 Switching\r\n\r\n" + ESTABLISHED), "does not answer in HTTP/1"),
        (raw(b"HTTP/1.1 100 Continue\r\n\r\nnonsense\r\n\r\n"), "does not answer in HTTP/1"),
        (raw(b"HTTP/1.1 200 OK\r\nX-Flood: " + b"x" * 1_000_000), "a head of over 65536 bytes"),
        (raw(b"HTTP/1.1 100 Continue\r\n\r\n" * 4000), "a head of over 65536 bytes"),
        (raw(ESTABLISHED + b"!"), "sent 1 surplus bytes behind its answer"),
        (raw(ESTABLISHED * 2), f"sent {len(ESTABLISHED)} surplus bytes behind its answer"),
        (scripted.close_without_answer, "closed the connection before it answered"),
        (raw(ESTABLISHED[:-1], then_close=True), "closed the connection before it answered"),
    ],
    ids=["ssh", "tls", "line-break", "http2", "2000", "no-status", "101", "nonsense", "flood", "storm", "surplus",
         "twice", "closed", "cut"],
)  # fmt: skip
async def test_answers_that_open_nothing(behaviour: Behaviour, words: str) -> None:
    failure = await failure_with(behaviour)
    assert failure.fault is Fault.CONNECT
    assert words in failure.detail


async def test_reset_instead_of_an_answer() -> None:
    failure = await failure_with(scripted.reset_without_answer)
    assert failure.fault is Fault.CONNECT
    assert failure.detail.endswith("Connection reset by peer")


async def test_a_proxy_that_ends_in_the_handshake() -> None:
    failure = await failure_with(die_in_handshake, url=SECURE)
    assert failure.fault is Fault.CONNECT


async def test_late_surplus_bytes_belong_to_no_answer() -> None:
    """Bytes that arrive when the tunnel stands and before the first request: the connection is not used."""

    is_acquired = threading.Event()  # the proxy has a loop of its own

    async def chatty(wire: scripted.Wire) -> None:
        await wire.write(ESTABLISHED)
        await asyncio.to_thread(is_acquired.wait, 30)
        await wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await wire.until_gone()

    async with ConnectProxy(chatty) as proxy:
        pool = pool_of(PLAIN, proxy=proxy.url)
        connection = await acquired(pool)
        is_acquired.set()
        await until(lambda: connection.is_closed)
        connection.abort()
        assert "0 in flight, 0 idle" in repr(pool)
        await pool.close()


@pytest.mark.parametrize("certified", ["other.example.com", "127.0.0.1"])
async def test_a_certificate_for_another_host_is_refused(certified: str, authority: Authority) -> None:
    """Also the proxy's own: a tunnel is no reason to trust it."""
    async with (
        Scripted(tls=authority.server_context(certified)) as upstream,
        ConnectProxy(tunnel(upstream.port)) as proxy,
    ):
        failure = await failure_at(proxy.url, SECURE, ca_file=str(authority.ca_file))
        assert "certificate rejected: Hostname mismatch" in failure.detail
        await until(lambda: upstream.open_now == 0)
        assert upstream.hits == 0


async def test_dead_proxy() -> None:
    failure = await failure_at(f"http://user:secret-word@127.0.0.1:{(port := dead_port())}")
    assert failure.fault is Fault.CONNECT
    assert failure.detail.startswith(f"cannot connect to api.example.com:8000 through the proxy 127.0.0.1:{port}: ")
    assert "secret-word" not in failure.detail


async def test_proxy_without_an_address() -> None:
    failure = await failure_at("http://proxy.invalid:3128")
    assert failure.fault is Fault.CONNECT
    assert failure.detail.startswith("cannot resolve the proxy proxy.invalid: ")


async def test_second_address_of_the_proxy_answers_when_the_first_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Scripted(scripted.ok_json()) as upstream, ConnectProxy(tunnel(upstream.port)) as proxy:
        pool = pool_of(PLAIN, proxy="http://proxy.example:3128")
        dead = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", dead_port()))
        alive = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", proxy.port))

        async def found() -> list[object]:
            return [alive, dead]  # the next dial begins with the second

        monkeypatch.setattr(pool, "_query", found)
        assert (await ask(pool)).failure is None
        await pool.close()


async def test_cancelled_dial_leaves_nothing_with_the_proxy() -> None:
    async with ConnectProxy(silent) as proxy:
        pool = pool_of(PLAIN, 1, proxy=proxy.url)
        dial = asyncio.ensure_future(pool.acquire())
        await until(lambda: proxy.hits == 1)
        dial.cancel()
        await asyncio.gather(dial, return_exceptions=True)
        assert dial.cancelled()
        assert "0 in flight, 0 idle, 0 dialling" in repr(pool)
        await until(lambda: proxy.open_now == 0)
        await pool.close()


async def test_abort_in_the_tunnel_ends_it_everywhere() -> None:
    async with Scripted(scripted.silent) as upstream, ConnectProxy(tunnel(upstream.port)) as proxy:
        pool = pool_of(PLAIN, proxy=proxy.url)
        connection, _ = await begin(pool)
        await until(lambda: upstream.hits == 1)
        connection.abort()
        await until(lambda: upstream.open_now == 0 and proxy.open_now == 0)
        await pool.close()
