"""Idle connections, limits, dialling. Every pool talks to a real server."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import socket
import ssl
from typing import Any

import pytest

from gateway.records import Failure, Fault, Phase
from gateway.upstream.connection import Connection
from gateway.upstream.pool import Pool
from tests.fakes import scripted
from tests.fakes.scripted import Authority, Scripted, Wire, dead_port, until

from .moved_clock import MovedClock
from .recorder import Ear, acquired, ask, begin, pool_of, settings

# ---------------------------------------------------------------------------------------------------- requests


def request_text(pool: Pool, path: str, headers: list[tuple[str, str]], body: bytes = b"") -> str:
    return b"".join(pool.request(path, headers, body)).decode("latin-1")


async def test_request_is_exactly_this() -> None:
    pool = pool_of(
        "https://api.example.com/v1", api_key="sk-secret", headers={"OpenAI-Organization": "org-1", "X-Empty": ""}
    )
    given = [("Content-Type", "application/json"), ("User-Agent", "x/1")]
    assert request_text(pool, "/completions", given, b"{}").encode() == (
        b"POST /v1/completions HTTP/1.1\r\n"
        b"Host: api.example.com\r\n"
        b"Authorization: Bearer sk-secret\r\n"
        b"OpenAI-Organization: org-1\r\n"
        b"X-Empty: \r\n"
        b"Accept-Encoding: identity\r\n"
        b"Connection: keep-alive\r\n"
        b"Content-Type: application/json\r\n"
        b"User-Agent: x/1\r\n"
        b"Content-Length: 2\r\n"
        b"\r\n"
        b"{}"
    )
    assert bytes(pool.request("/models", [], b"", method="GET")[0]).startswith(b"GET /v1/models HTTP/1.1\r\n")
    assert b"Content-Length" not in pool.request("/models", [], b"", method="GET")[0]
    assert bytes(pool.request("/completions", [], b"")[0]).endswith(b"\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize(
    ("url", "line", "host"),
    [
        ("http://api.example.com", "POST /x HTTP/1.1", "Host: api.example.com"),
        ("http://API.example.com:8000/a/b/", "POST /a/b/x HTTP/1.1", "Host: api.example.com:8000"),
        ("http://[::1]:8000/v1", "POST /v1/x HTTP/1.1", "Host: [::1]:8000"),
        ("http://127.0.0.1/v1", "POST /v1/x HTTP/1.1", "Host: 127.0.0.1"),
    ],
)
async def test_request_names_host_and_path(url: str, line: str, host: str) -> None:
    text = request_text(pool_of(url), "/x", [])
    assert text.split("\r\n")[:2] == [line, host]
    assert "Authorization" not in text


async def test_no_header_can_begin_a_line_of_its_own() -> None:
    pool = pool_of("http://h/v1")
    for evil in ("a\r\nX-Evil: 1", "a\nX-Evil: 1", "a\rX-Evil: 1", "a\r\n\r\nGET / HTTP/1.1", "a\0b"):
        for headers in ([("X-A", evil)], [(evil, "v")], [("X-A", "ok"), ("X-B", evil), ("X-C", "ok")]):
            lines = request_text(pool, "/x", headers).split("\r\n")
            assert len(lines) == 4 + len(headers) + 3
            assert not any("\n" in line or "\r" in line or "\0" in line for line in lines)
        text = request_text(pool, f"/{evil}", [])
        assert text.count("\r\n") == text.count("\n") == 6
        assert len(text.split("\r\n")[0].split(" ")) == 3


async def test_header_bytes_of_the_client_survive() -> None:
    """aiohttp decodes headers as UTF-8 with surrogates for what is not."""
    pool = pool_of("http://h/v1")
    value = b"caf\xc3\xa9 \xff".decode("utf-8", "surrogateescape")
    assert b"X-A: caf\xc3\xa9 \xff\r\n" in pool.request("/x", [("X-A", value)], b"")[0]


async def test_large_body_is_not_copied() -> None:
    body = b"x" * 1_000_000
    assert pool_of("http://h/v1").request("/x", [], body)[1] is body


async def test_secret_is_in_no_repr() -> None:
    pool = pool_of("http://h/v1", api_key="sk-secret")
    assert "sk-secret" not in repr(pool)


async def test_each_request_presents_its_given_key() -> None:
    pool = pool_of("http://h/v1", api_keys=["sk-one", "sk-two"])
    for place, key in enumerate(["sk-one", "sk-two"]):
        (request,) = pool.request("/x", [], b"{}", key=place)
        assert bytes(request).count(b"Authorization: ") == 1
        assert f"\r\nAuthorization: Bearer {key}\r\n".encode() in bytes(request)


async def test_every_key_is_hidden() -> None:
    pool = pool_of("http://h/v1", api_keys=["sk-one", "sk-two"], headers={"X-Key": "three"})
    hidden = dict(pool.hidden)
    assert [hidden[secret] for secret in ("sk-one", "sk-two", "three")] == ["***"] * 3
    assert "sk-" not in repr(pool)


# ------------------------------------------------------------------------------------------- idle connections


async def test_idle_connections_are_taken_last_in_first_out() -> None:
    async with Scripted(always=scripted.ok_json()) as upstream:
        pool = pool_of(upstream.url)
        first, second, third = [await acquired(pool) for _ in range(3)]
        assert repr(pool).endswith("3 in flight, 0 idle, 0 dialling, 0 waiting, of 10>")
        for connection in (second, third, first):
            connection.release()
        assert repr(pool).endswith("0 in flight, 3 idle, 0 dialling, 0 waiting, of 10>")
        assert [await pool.acquire() for _ in range(3)] == [first, third, second]
        assert pool.in_flight == 3
        for connection in (second, third, first):
            connection.send(pool.request("/x", [], b""), Ear())
        await until(lambda: pool.in_flight == 0)
        assert upstream.connections == 3
        await pool.close()


async def test_old_connection_is_not_used_again(clock: MovedClock) -> None:
    async with Scripted(always=scripted.ok_json()) as upstream:
        pool = pool_of(upstream.url, max_connection_age_s=0.1)
        for _ in range(2):
            await ask(pool)
        assert upstream.connections == 1
        clock.move(0.1)
        await until(lambda: upstream.open_now == 0)  # closed by age, without anybody asking
        assert "0 idle" in repr(pool)
        await ask(pool)
        assert upstream.connections == 2
        await pool.close()


async def test_connection_that_grows_old_in_use_ends_with_its_exchange(clock: MovedClock) -> None:
    async with Scripted(always=scripted.stream([{"a": 1}] * 4, 0.02)) as upstream:
        pool = pool_of(upstream.url, max_connection_age_s=0.05)
        _, ear = await begin(pool)
        await until(lambda: ear.pieces)
        clock.move(0.05)
        assert await ear.end() is None
        assert ear.body.endswith(b"[DONE]\n\n")
        assert "0 in flight, 0 idle" in repr(pool)
        await pool.close()


async def test_age_is_checked_when_a_connection_is_taken() -> None:
    """Before any timer has had its turn."""
    async with Scripted(always=scripted.ok_json()) as upstream:
        pool = pool_of(upstream.url, max_connection_age_s=100)
        await ask(pool)
        for connection in pool._idle:
            connection._expires_at = 0.0
        await ask(pool)
        assert upstream.connections == 2
        await pool.close()


async def test_close_keeps_nothing_and_lets_running_exchanges_end() -> None:
    async with Scripted(always=scripted.stream([{"a": 1}] * 2, 0.02)) as upstream:
        pool = pool_of(upstream.url)
        (_, first), (_, second) = await begin(pool), await begin(pool)
        await first.end()
        await pool.close()
        assert await second.end() is None
        assert "0 in flight, 0 idle, 0 dialling, 0 waiting, of 10, closed>" in repr(pool)
        await until(lambda: upstream.open_now == 0)
        assert (await ask(pool)).failure is None  # a call keeps the settings, and so the pool, that it began with
        await until(lambda: upstream.open_now == 0)


# ----------------------------------------------------------------------------------------------- the limit


async def test_never_more_than_max_connections() -> None:
    async with Scripted(always=scripted.after(0.01, scripted.ok_json())) as upstream:
        pool = pool_of(upstream.url, 3)
        ears = await asyncio.gather(*(ask(pool) for _ in range(20)))
        assert all(ear.failure is None for ear in ears)
        assert upstream.most_open == 3
        assert upstream.connections == 3
        await pool.close()


async def test_never_more_than_max_connections_when_none_stays() -> None:
    async def answer_and_close(wire: Wire) -> None:
        await scripted.answer(b"{}", headers=[("Connection", "close")])(wire)
        wire.close()

    async with Scripted(always=answer_and_close) as upstream:
        pool = pool_of(upstream.url, 3)
        ears = await asyncio.gather(*(ask(pool) for _ in range(30)))
        assert all(ear.failure is None for ear in ears)
        assert upstream.connections == 30
        assert "0 in flight, 0 idle, 0 dialling, 0 waiting" in repr(pool)
        await pool.close()


async def test_waiters_are_served_first_come_first_served() -> None:
    async with Scripted(always=scripted.ok_json()) as upstream:
        pool = pool_of(upstream.url, 1)
        held = await acquired(pool)
        order: list[int] = []

        async def wait(number: int) -> None:
            connection = await acquired(pool)
            order.append(number)
            await asyncio.sleep(0.002)
            if number % 2:
                connection.abort()  # the next one gets a place, else the connection itself
            else:
                connection.release()

        waiting = []
        for number in range(6):
            waiting.append(asyncio.ensure_future(wait(number)))
            await asyncio.sleep(0)
        assert "1 in flight, 0 idle, 0 dialling, 6 waiting, of 1" in repr(pool)
        held.release()
        late = asyncio.ensure_future(wait(6))  # something is free for a moment, and not for a newcomer
        await asyncio.gather(*waiting, late)
        assert order == list(range(7))
        await pool.close()


async def test_full_pool_is_busy_after_connect_s() -> None:
    async with Scripted() as upstream:
        pool = pool_of(upstream.url, 1, connect_s=0.05)
        held = await acquired(pool)
        failure = await pool.acquire()
        assert failure == Failure("up", Phase.CONNECT, Fault.BUSY, "all 1 connections were in use for 0.05 s")
        assert "0 waiting" in repr(pool)
        held.release()
        assert await pool.acquire() is held
        held.abort()
        await pool.close()


async def wait_until_waiting(pool: Pool, count: int) -> None:
    """Return when so many calls wait for a connection."""
    await until(lambda: f" {count} waiting" in repr(pool))


async def test_being_out_of_descriptors_is_not_the_upstreams_fault() -> None:
    _, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with Scripted() as upstream:
        pool = pool_of(upstream.url, 1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            failure = await pool.acquire()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert isinstance(failure, Failure)
        assert (failure.phase, failure.fault) == (Phase.CONNECT, Fault.BUSY)
        assert failure.detail.endswith("Too many open files")
        await acquired(pool)
        await pool.close()


async def test_cancelled_waiter_passes_on_what_it_was_given() -> None:
    """In the same turn of the loop a waiter is handed a connection, or a place, and is cancelled."""
    async with Scripted() as upstream:
        for is_place in (False, True):
            pool = pool_of(upstream.url, 1)
            held = await acquired(pool)
            first, second = (asyncio.ensure_future(pool.acquire()) for _ in range(2))
            await wait_until_waiting(pool, 2)
            if is_place:
                held.abort()
            else:
                held.release()
            first.cancel()
            got = await second
            assert isinstance(got, Connection)
            assert (got is held) is not is_place
            assert first.cancelled()
            assert "1 in flight, 0 idle, 0 dialling, 0 waiting" in repr(pool)
            got.abort()
            await pool.close()


async def test_a_cancelled_last_waiter_frees_its_place() -> None:
    async with Scripted() as upstream:
        for is_place in (False, True):
            pool = pool_of(upstream.url, 1)
            held = await acquired(pool)
            only = asyncio.ensure_future(pool.acquire())
            await wait_until_waiting(pool, 1)
            if is_place:
                held.abort()
            else:
                held.release()
            only.cancel()
            await asyncio.gather(only, return_exceptions=True)
            assert only.cancelled()
            assert f"0 in flight, {0 if is_place else 1} idle, 0 dialling, 0 waiting" in repr(pool)
            (await acquired(pool)).abort()
            await pool.close()


async def test_waiter_cancelled_in_the_same_turn_is_passed_over() -> None:
    """Cancelled first, then something becomes free: the mirror image of the case above."""
    async with Scripted() as upstream:
        for is_place in (False, True):
            pool = pool_of(upstream.url, 1)
            held = await acquired(pool)
            first, second = (asyncio.ensure_future(pool.acquire()) for _ in range(2))
            await wait_until_waiting(pool, 2)
            first.cancel()
            if is_place:
                held.abort()
            else:
                held.release()
            got = await second
            assert isinstance(got, Connection)
            assert (got is held) is not is_place
            assert "1 in flight, 0 idle, 0 dialling, 0 waiting" in repr(pool)
            got.abort()
            await pool.close()


async def test_a_connection_lost_on_its_way_to_a_waiter_is_replaced() -> None:
    async with Scripted(always=scripted.ok_json()) as upstream:
        pool = pool_of(upstream.url, 1)
        held = await acquired(pool)
        waiting = asyncio.ensure_future(pool.acquire())
        await wait_until_waiting(pool, 1)
        held.release()
        held.eof_received()  # the upstream hangs up before the waiter has woken
        got = await waiting
        assert isinstance(got, Connection)
        assert not got.is_closed
        assert "1 in flight, 0 idle, 0 dialling, 0 waiting" in repr(pool)
        got.abort()
        await pool.close()


async def test_no_place_is_ever_lost() -> None:
    """Calls that are cancelled, aborted, timed out and answered at random; afterwards every place is free."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)

    moods = {
        b"0": scripted.close_without_answer,
        b"1": scripted.cut_mid_body,
        b"2": scripted.keepalive_then_close,
        b"3": scripted.silent,
    }

    async def moody(wire: Wire) -> None:
        await moods.get(wire.request.body, scripted.ok_json())(wire)

    async with Scripted(always=moody) as upstream:
        pool = pool_of(upstream.url, 4, connect_s=0.05, head_s=0.02)

        async def call() -> None:
            connection = await pool.acquire()
            if isinstance(connection, Failure):
                assert connection.fault in (Fault.BUSY, Fault.TIMEOUT)
                return
            ear = Ear()
            try:
                connection.send(pool.request("/x", [], b"%d" % chance.randrange(10)), ear)
                await ear.end()
            finally:
                if not ear.has_ended:
                    connection.abort()

        calls = []
        for _ in range(300):
            calls.append(asyncio.ensure_future(call()))
            if chance.random() < 0.3:
                asyncio.get_running_loop().call_later(chance.random() * 0.02, calls[-1].cancel)
            await asyncio.sleep(chance.random() * 0.002)
        for result in await asyncio.gather(*calls, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError), result
        assert "0 in flight" in repr(pool)
        assert "0 dialling, 0 waiting" in repr(pool)
        held = [await acquired(pool) for _ in range(4)]
        for connection in held:
            connection.abort()
        await pool.close()


# --------------------------------------------------------------------------------------------------- dialling


async def test_dead_port_is_a_connect_failure() -> None:
    pool = pool_of(f"http://127.0.0.1:{(port := dead_port())}/v1")
    failure = await pool.acquire()
    assert isinstance(failure, Failure)
    assert (failure.phase, failure.fault) == (Phase.CONNECT, Fault.CONNECT)
    assert failure.detail.startswith(f"cannot connect to 127.0.0.1:{port}: ")
    assert "0 in flight, 0 idle, 0 dialling" in repr(pool)
    await pool.close()


async def test_failed_dials_free_their_places_for_those_who_wait() -> None:
    pool = pool_of(f"http://127.0.0.1:{dead_port()}/v1", 2)
    failures = await asyncio.gather(*(pool.acquire() for _ in range(20)))
    assert {failure.fault for failure in failures if isinstance(failure, Failure)} == {Fault.CONNECT}
    assert "0 in flight, 0 idle, 0 dialling, 0 waiting" in repr(pool)
    await pool.close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 64 + ".example"])
async def test_unknown_name_is_a_connect_failure(host: str) -> None:
    pool = pool_of(f"http://{host}/v1")
    failure = await pool.acquire()
    assert isinstance(failure, Failure)
    assert (failure.phase, failure.fault) == (Phase.CONNECT, Fault.CONNECT)
    assert failure.detail.startswith(f"cannot resolve {host}: ")
    await pool.close()


def resolve_to(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, *addresses: tuple[str, int], may_answer: asyncio.Event | None = None
) -> list[int]:
    """Let a pool's name lead to these addresses; the list that is returned grows with each look-up. Look-ups wait for
    the event."""
    asked: list[int] = []

    async def getaddrinfo(*_: object, **__: object) -> list[Any]:
        asked.append(len(asked))
        if may_answer is not None:
            await may_answer.wait()
        return [
            (socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))
            for host, port in addresses
        ]

    monkeypatch.setattr(pool, "_query", getaddrinfo)
    return asked


async def test_second_address_answers_when_the_first_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Scripted(always=scripted.ok_json()) as upstream:
        for dead in ("127.0.0.1", "::1"):
            pool = pool_of("http://api.example.com/v1")
            resolve_to(pool, monkeypatch, (dead, dead_port()), ("127.0.0.1", upstream.port))
            assert (await ask(pool)).failure is None
            await pool.close()
        assert upstream.requests[0].headers["host"] == "api.example.com"


async def test_second_address_answers_while_the_first_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Happy eyeballs: a server whose queue of connections is full drops the next one without a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as fillers:
        for _ in range(4):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        async with Scripted(always=scripted.ok_json()) as upstream:
            pool = pool_of("http://api.example.com/v1", connect_s=60)
            resolve_to(pool, monkeypatch, ("127.0.0.1", upstream.port), full.getsockname())
            assert (await ask(pool)).failure is None
            await pool.close()


async def test_failed_dial_asks_for_the_addresses_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Scripted(always=scripted.ok_json()) as upstream:
        pool = pool_of("http://api.example.com/v1")
        resolve_to(pool, monkeypatch, ("127.0.0.1", dead_port()))
        assert isinstance(await pool.acquire(), Failure)
        resolve_to(pool, monkeypatch, ("127.0.0.1", upstream.port))
        assert (await ask(pool)).failure is None
        await pool.close()


async def test_dials_at_the_same_time_share_one_look_up_and_spread_over_the_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Scripted(always=scripted.ok_json()) as one, Scripted(always=scripted.ok_json()) as other:
        pool = pool_of("http://api.example.com/v1")
        addresses, may_answer = [("127.0.0.1", one.port), ("127.0.0.1", other.port)], asyncio.Event()
        asked = resolve_to(pool, monkeypatch, *addresses, may_answer=may_answer)
        impatient = asyncio.ensure_future(pool.acquire())
        await until(lambda: asked)
        others = [asyncio.ensure_future(ask(pool)) for _ in range(8)]
        await asyncio.sleep(0)
        impatient.cancel()  # the first caller is cancelled; the others get their connection
        await asyncio.gather(impatient, return_exceptions=True)
        may_answer.set()
        for asked_later in others:
            assert (await asked_later).failure is None
        assert len(asked) == 1
        assert (one.connections, other.connections) == (4, 4)
        await pool.close()


async def test_slow_name_counts_against_connect_s(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of("http://api.example.com:81/v1", connect_s=0.05)
    resolve_to(pool, monkeypatch, ("127.0.0.1", 1), may_answer=asyncio.Event())
    failure = await pool.acquire()
    assert failure == Failure("up", Phase.CONNECT, Fault.TIMEOUT, "no connection to api.example.com:81 within 0.05 s")
    assert "0 dialling" in repr(pool)
    await pool.close()


async def test_connection_has_no_delay_and_probes_a_silent_peer() -> None:
    async with Scripted() as upstream:
        pool = pool_of(upstream.url)
        connection = await acquired(pool)
        assert connection._transport is not None
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        connection.abort()
        await pool.close()


# -------------------------------------------------------------------------------------------------------- TLS


def tls_url(upstream: Scripted, host: str = "127.0.0.1") -> str:
    return f"https://{host}:{upstream.port}/v1"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_good_certificate_is_accepted(host: str, authority: Authority) -> None:
    named: list[str | None] = []
    context = authority.server_context(host)
    context.sni_callback = lambda _socket, name, _context: named.append(name)
    async with Scripted(always=scripted.ok_json(), tls=context) as upstream:
        pool = pool_of(tls_url(upstream, host), ca_file=str(authority.ca_file))
        assert (await ask(pool)).failure is None
        assert (await ask(pool)).failure is None
        assert upstream.connections == 1
        assert named == ["localhost" if host == "localhost" else None]
        await pool.close()
        await until(lambda: upstream.open_now == 0)


@pytest.mark.parametrize(
    ("certified", "is_known", "words"),
    [
        ("example.com", True, "mismatch"),
        ("127.0.0.2", True, "mismatch"),
        ("127.0.0.1", False, "unable to get local issuer certificate"),
    ],
)
async def test_bad_certificate_is_refused_before_a_byte_is_sent(
    certified: str, is_known: bool, words: str, authority: Authority
) -> None:
    ca_file = str(authority.ca_file) if is_known else None
    async with Scripted(tls=authority.server_context(certified)) as upstream:
        pool = pool_of(tls_url(upstream), ca_file=ca_file)
        failure = await pool.acquire()
        assert isinstance(failure, Failure)
        assert (failure.phase, failure.fault) == (Phase.CONNECT, Fault.CONNECT)
        assert "certificate rejected" in failure.detail
        assert words in failure.detail
        assert "0 in flight, 0 idle, 0 dialling" in repr(pool)
        await until(lambda: upstream.open_now == 0)
        assert upstream.hits == 0
        await pool.close()


async def test_old_tls_is_refused(authority: Authority) -> None:
    context = authority.server_context("127.0.0.1")
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with Scripted(tls=context) as upstream:
        pool = pool_of(tls_url(upstream), ca_file=str(authority.ca_file))
        failure = await pool.acquire()
        assert isinstance(failure, Failure)
        assert (failure.phase, failure.fault) == (Phase.CONNECT, Fault.CONNECT)
        await pool.close()


async def test_handshake_that_never_ends_counts_against_connect_s() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        pool = pool_of(f"https://127.0.0.1:{deaf.getsockname()[1]}/v1", connect_s=0.05)
        failure = await pool.acquire()
        assert isinstance(failure, Failure)
        assert (failure.phase, failure.fault) == (Phase.CONNECT, Fault.TIMEOUT)
        assert "0 in flight, 0 idle, 0 dialling" in repr(pool)
        await pool.close()


async def test_cancelled_dial_leaves_nothing() -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        pool = pool_of(f"https://127.0.0.1:{listener.getsockname()[1]}/v1", 1)
        dial = asyncio.ensure_future(pool.acquire())
        peer, _ = await loop.sock_accept(listener)
        with peer:
            assert "1 dialling" in repr(pool)
            dial.cancel()
            await asyncio.gather(dial, return_exceptions=True)
            assert dial.cancelled()
            assert "0 in flight, 0 idle, 0 dialling" in repr(pool)
            while await loop.sock_recv(peer, 65536):  # the beginning of a handshake, then the end
                pass
        await pool.close()


async def test_peer_that_does_not_speak_tls_is_a_connect_failure() -> None:
    def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    pool = pool_of(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
    failure = await pool.acquire()
    assert isinstance(failure, Failure)
    assert (failure.phase, failure.fault) == (Phase.CONNECT, Fault.CONNECT)
    await pool.close()
    server.close()
    await server.wait_closed()


async def test_unusable_ca_file_is_an_os_error(authority: Authority) -> None:
    file = authority.folder / "changed.pem"
    file.write_bytes(authority.ca_file.read_bytes())
    good = settings("https://api.example.com/v1", ca_file=str(file))
    file.write_text("nothing")
    with pytest.raises(OSError):
        Pool("up", good, 1)
    with pytest.raises(ValueError, match="holds no certificates"):
        settings("https://api.example.com/v1", ca_file=str(file))


def test_pool_serves_on_for_the_same_settings_alone() -> None:
    one = settings("https://api.example.com/v1", api_key="a-key-of-ours")
    pool = Pool("up", one, 10)
    assert pool.is_for(settings("https://api.example.com/v1", api_key="a-key-of-ours"), 10)
    assert not pool.is_for(one, 11)
    for changes in ({"api_key": "another-key"}, {"headers": {"X-A": "1"}}, {"ca_file": None, "max_connections": 5}):
        assert not pool.is_for(settings("https://api.example.com/v1", **{"api_key": "a-key-of-ours", **changes}), 10)


async def test_aborted_exchange_lets_the_next_in_line_dial() -> None:
    async with Scripted(scripted.silent, scripted.ok_json()) as upstream:
        pool = pool_of(upstream.url, 1)
        connection, _ = await begin(pool)
        waiting = asyncio.ensure_future(ask(pool))
        await until(lambda: upstream.hits == 1)
        connection.abort()
        assert (await waiting).failure is None
        assert upstream.connections == 2
        await pool.close()
