"""The supervisor's side of a reload: what is applied, what is refused, and what is logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.config.source import Contents, Source
from gateway.process import reload
from gateway.process.reload import Reloader, ReloadResult
from gateway.tasks import Tasks
from tests.fakes.scripted import until
from tests.patience import at_least

TEXT = """
upstreams:
  up: {base_url: "http://up.example/v1", api_key: "${file:KEY}"}
models:
  m: {routes: [{upstream: up}], max_output_tokens: 100}
"""
SECRET = "the-second-key-of-the-upstream"


class ReloadCase:
    """A configuration file, a secret file, and workers that accept every configuration."""

    def __init__(self, folder: Path) -> None:
        self.key = folder / "key"
        self.key.write_text("the-first-key-of-the-upstream")
        self.file = folder / "gateway.yaml"
        self.write(TEXT)
        self.given: list[Mapping[str, Any]] = []
        self.source = Source(str(self.file), {})
        self.reloader = Reloader(self.source.read(), self.source, self.take)

    def write(self, text: str) -> None:
        self.file.write_text(text.replace("KEY", str(self.key)))

    def looks(self) -> list[Contents]:
        """The results of the next reads of the file."""
        found: list[Contents] = []
        look = self.source.look

        def noted() -> Contents:
            found.append(look())
            return found[-1]

        self.source.look = noted  # type: ignore[method-assign]
        return found

    async def take(self, values: Mapping[str, Any]) -> None:
        # A worker that starts now gets the new configuration; running workers still use the old one.
        assert (self.reloader.now.values, self.reloader.generation) == (values, len(self.given) + 1)
        self.given.append(values)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        tasks = Tasks()
        tasks.keep(self.reloader.watch, "watch")
        try:
            yield
        finally:
            await tasks.cancel_all()


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReloadCase:
    monkeypatch.setattr(reload, "LOOK_EVERY_S", 0.01)
    return ReloadCase(tmp_path)


async def test_changes_are_applied_and_logged(case: ReloadCase, caplog: pytest.LogCaptureFixture) -> None:
    case.write(TEXT.replace("100", "200"))
    case.key.write_text(SECRET)
    outcome = await case.reloader.reload("SIGHUP")
    received = ["upstreams.up.api_key: (secret) changed", "models.m.max_output_tokens: 100 -> 200"]
    assert outcome == ReloadResult(2, received)
    (values,) = case.given
    assert values["models"]["m"]["max_output_tokens"] == 200
    assert case.reloader.generation == 2
    assert case.reloader.results == {"applied": 1, "refused": 0}
    assert "the configuration is reloaded (SIGHUP), and is now number 2:" in caplog.messages
    assert [f"  {line}" for line in received] == [line for line in caplog.messages if line.startswith("  ")]
    assert SECRET not in caplog.text


async def test_a_preview_applies_nothing_and_hides_secrets(case: ReloadCase) -> None:
    case.write(TEXT.replace("100", "200") + "server: {port: 1234}\n")
    case.key.write_text(SECRET)
    received = await case.reloader.preview()
    assert received.changes == [
        ("server.port", "8080 -> 1234", True),
        ("upstreams.up.api_key", "(secret) changed", False),
        ("models.m.max_output_tokens", "100 -> 200", False),
    ]
    assert (received.generation, received.code) == (1, "restart_required")
    assert [fault.partition(": ")[0] for fault in received.faults] == ["server.port"]
    case.write(TEXT.replace("100", "none"))
    received = await case.reloader.preview()
    assert (received.code, len(received.faults), received.changes) == ("invalid_configuration", 1, ())
    assert not case.given
    assert case.reloader.results == {"applied": 0, "refused": 0}


async def test_what_was_only_previewed_is_applied_by_itself(case: ReloadCase) -> None:
    case.write(TEXT.replace("100", "200"))
    assert (await case.reloader.preview()).code is None
    async with case.watched():
        await until(lambda: len(case.given) == 1)


async def test_a_changed_file_waits_where_it_is_not_to_be_applied_by_itself(case: ReloadCase) -> None:
    waiting = TEXT + "server: {reload_on_change: false}\n"
    case.write(waiting)
    await case.reloader.reload("SIGHUP")
    looks = case.looks()
    async with case.watched():
        case.write(waiting.replace("100", "200"))
        await until(lambda: len(looks) > 5)
        received = await case.reloader.preview()
        assert [change[0] for change in received.changes] == ["models.m.max_output_tokens"]
        assert not received.applies_by_itself
        assert len(case.given) == 1
        await case.reloader.reload("admin API")
        assert len(case.given) == 2


async def test_nothing_has_changed(case: ReloadCase) -> None:
    case.write(TEXT + "# a remark\n")
    assert await case.reloader.reload("SIGHUP") == ReloadResult(1, [])
    assert not case.given


async def test_all_faults_are_reported_at_once_and_change_nothing(
    case: ReloadCase, caplog: pytest.LogCaptureFixture
) -> None:
    case.write(TEXT.replace("max_output_tokens: 100", "max_output_tokens: none, prise: 1"))
    outcome = await case.reloader.reload("SIGHUP")
    assert (outcome.generation, outcome.code) == (1, "invalid_configuration")
    assert [fault.split(": ")[1] for fault in outcome.faults] == ["models.m.max_output_tokens", "models.m.prise"]
    assert case.reloader.now.config.models["m"].max_output_tokens == 100
    assert not case.given
    assert case.reloader.results == {"applied": 0, "refused": 1}
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3


async def test_what_needs_a_restart_is_refused_by_name_with_everything_beside_it(case: ReloadCase) -> None:
    case.write(TEXT.replace("100", "200") + "server: {port: 1234, host: 0.0.0.0}\nstore: {namespace: other}\n")
    outcome = await case.reloader.reload("SIGHUP")
    assert (outcome.generation, outcome.code) == (1, "restart_required")
    assert [fault.partition(": ")[0] for fault in outcome.faults] == ["server.host", "server.port", "store.namespace"]
    assert not case.given


async def test_a_gateway_without_a_file_says_so(case: ReloadCase) -> None:
    reloader = Reloader(case.reloader.now, None, case.take)
    outcome = await reloader.reload("SIGHUP")
    assert outcome.code == "invalid_configuration"
    assert "without a file" in outcome.faults[0]
    await asyncio.wait_for(reloader.watch(), 5)  # nothing to watch


async def test_a_fault_of_ours_does_not_end_the_watch(
    case: ReloadCase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gateway.tasks.AGAIN_S", 0.001)
    look, faults = case.source.look, [ZeroDivisionError()]

    def fails_at_first() -> Contents:
        if faults:
            raise faults.pop()
        return look()

    case.source.look = fails_at_first  # type: ignore[method-assign]
    async with case.watched():
        case.write(TEXT.replace("100", "200"))
        await until(lambda: len(case.given) == 1)
    assert "background task watch failed, and begins again in 0.001 s" in caplog.messages


async def test_a_changed_file_is_applied_by_itself(case: ReloadCase) -> None:
    async with case.watched():
        case.write(TEXT.replace("100", "200"))
        await until(lambda: len(case.given) == 1)
        case.key.write_text(SECRET)
        await until(lambda: len(case.given) == 2)
        assert case.given[1]["upstreams"]["up"]["api_key"] == SECRET


async def test_a_file_that_is_being_written_is_not_read(case: ReloadCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change counts once two reads in a row agree."""
    assert case.reloader._source is not None
    looks = iter([{"gateway.yaml": str(number)} for number in range(20)])
    last = {"gateway.yaml": "19"}
    monkeypatch.setattr(case.reloader._source, "look", lambda: next(looks, last))
    case.write(TEXT.replace("100", "200"))
    for _ in range(20):
        await case.reloader._look(case.reloader._source)
        assert not case.given
    await case.reloader._look(case.reloader._source)
    assert len(case.given) == 1


async def test_a_bad_file_is_logged_once_and_applied_when_it_is_mended(
    case: ReloadCase, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "TRY_AGAIN_EVERY", 1)
    async with case.watched():
        case.write("upstreams: {")
        await until(lambda: case.reloader.results["refused"] == 1)
        assert case.reloader._source is not None
        reads = 0
        read = case.reloader._source.read

        def counted() -> Any:
            nonlocal reads
            reads += 1
            return read()

        monkeypatch.setattr(case.reloader._source, "read", counted)
        await until(lambda: reads > 5)  # retried: the cause may be outside of the watched files
        assert case.reloader.results["refused"] == 1
        assert sum("is not reloaded" in line for line in caplog.messages) == 1
        case.write(TEXT.replace("100", "200"))
        await until(lambda: len(case.given) == 1)
        assert case.reloader.results == {"applied": 1, "refused": 1}
        tries = reads
        await at_least(0.1)
        assert reads == tries  # no more reads without a fault


async def test_what_stands_in_no_file_may_mend_a_fault(case: ReloadCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload, "TRY_AGAIN_EVERY", 1)
    missing = case.file.parent / "ca.pem"
    async with case.watched():
        case.write(TEXT.replace("api_key:", f"ca_file: {missing}, api_key:"))
        await until(lambda: case.reloader.results["refused"] == 1)
        missing.write_text("no certificate")
        await until(lambda: case.reloader.results["refused"] == 2)  # another fault: logged again
        assert not case.given


async def test_a_bug_does_not_end_the_watching(case: ReloadCase, monkeypatch: pytest.MonkeyPatch) -> None:
    assert case.reloader._source is not None
    look = case.reloader._source.look
    calls = iter([1])

    def fail_once() -> Any:
        if next(calls, None):
            raise ZeroDivisionError
        return look()

    monkeypatch.setattr(case.reloader._source, "look", fail_once)
    async with case.watched():
        case.write(TEXT.replace("100", "200"))
        await until(lambda: len(case.given) == 1)


async def test_many_changes_are_not_all_logged(case: ReloadCase, caplog: pytest.LogCaptureFixture) -> None:
    keys = "\n".join(f"  - {{id: k{number}, secret: {'s' * 24}{number}}}" for number in range(500))
    case.write(f"{TEXT}keys:\n{keys}\n")
    outcome = await case.reloader.reload("SIGHUP")
    assert len(outcome.changed) == 500
    assert len(caplog.messages) == reload.MOST_LOGGED + 2
    assert caplog.messages[-1] == "  and 400 more changes"
