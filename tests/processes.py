"""Runs test files in several processes: forks of the one that has collected all tests (option `--processes`).

1. A process gets one file at a time, and the next one when it has ended that: fixtures of a file are made once.
2. Its reports and warnings go to the first process, those of a test together, which passes them to the hooks of pytest:
   it prints and counts.
3. The collection is outside the collector's reach in all of them (`gc.freeze`).

pytest-xdist does the same with new interpreters, and each of them imports and collects every file: 10 to 20 s of CPU
each. It is used where a process with system libraries must not be forked: on macOS.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import pytest

FORK = multiprocessing.get_context("fork")
GRACE_S = 15.0
"""How long the processes of a run that breaks off have to stop what their tests have started."""


class Shared(Protocol):
    """What is made once for all processes, of which each takes its own."""

    def share(self, count: int) -> None:
        """Called in the first process, before it forks the others."""

    def take(self, number: int) -> None:
        """Called in each of the others."""

    def keep_none(self) -> None:
        """Called in the first process behind it."""


class Processes:
    """The plugin of the first process."""

    def __init__(self, count: int, prepares: Callable[[], None] | None = None, shared: Shared | None = None) -> None:
        """`prepares` is called before processes are forked: it imports what tests of several files import."""
        self._count = count
        self._prepares = prepares
        self._shared = shared

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly:
            return None  # as without this plugin
        files = [list(items) for _, items in itertools.groupby(session.items, key=lambda item: item.path)]
        _folders(session.config).getbasetemp()  # made once, by this process
        count = min(self._count, len(files))
        if self._shared is not None:
            self._shared.share(count)  # first: it starts another process
        if self._prepares is not None:
            self._prepares()
        gc.collect()
        gc.freeze()
        _Run(session, files, self._shared).go(count)
        return True


class _Run:
    def __init__(self, session: pytest.Session, files: Sequence[Sequence[pytest.Item]], shared: Shared | None) -> None:
        self._session = session
        self._shared = shared
        self._hook = session.config.hook
        self._files = files
        self._places = iter(range(len(files)))
        self._processes: dict[Connection, Any] = {}
        self._left: dict[Connection, Iterator[pytest.Item]] = {}
        """Of the file that a process runs, the tests without reports."""

    def go(self, count: int) -> None:
        try:
            for number in range(count):
                self._start(number)
            if self._shared is not None:
                self._shared.keep_none()
            while self._processes:
                for line in wait(list(self._processes)):
                    assert isinstance(line, Connection)
                    self._receive(line)
        finally:
            for line in self._processes:
                line.close()
            for process in self._processes.values():
                process.join(GRACE_S)
                process.kill()

    def _start(self, number: int) -> None:
        line, theirs = FORK.Pipe()
        arguments = (self._session, self._files, theirs, [*self._processes, line], number, self._shared)
        process = FORK.Process(target=_work, args=arguments)
        process.start()
        theirs.close()
        self._processes[line] = process
        self._give_file(line)

    def _give_file(self, line: Connection) -> None:
        place = next(self._places, None)
        self._left[line] = iter(() if place is None else self._files[place])
        line.send(place)

    def _receive(self, line: Connection) -> None:
        process = self._processes[line]
        try:
            kind, content = line.recv()
        except EOFError:
            process.join()
            del self._processes[line]
            if process.exitcode:
                last = next(self._left[line], None)
                name = "none" if last is None else last.nodeid
                message = f"a process of the tests ended with {process.exitcode}; its last test: {name}"
                raise self._session.Interrupted(message) from None
            return
        match kind:
            case "reports":
                next(self._left[line])
                for data in content:
                    report = self._hook.pytest_report_from_serializable(config=self._session.config, data=data)
                    self._hook.pytest_runtest_logreport(report=report)
            case "warning":
                self._hook.pytest_warning_recorded.call_historic(kwargs=content)
            case "next":
                self._give_file(line)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)


class _Sender:
    """The plugin of the other processes, which replaces the one that prints."""

    def __init__(self, config: pytest.Config, line: Connection) -> None:
        self._config = config
        self._line = line
        self._reports: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_runtest_logfinish(self) -> None:
        self._line.send(("reports", self._reports))
        self._reports = []

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        kind, text = warning_message.category, str(warning_message.message)
        message = warnings.WarningMessage(text, kind, warning_message.filename, warning_message.lineno)
        content = {"warning_message": message, "when": when, "nodeid": nodeid, "location": location}
        self._line.send(("warning", content))


def _work(
    session: pytest.Session,
    files: Sequence[Sequence[pytest.Item]],
    line: Connection,
    others: Sequence[Connection],
    number: int,
    shared: Shared | None,
) -> None:
    """Run one file after the other, until there is none, or until the first process has ended."""
    for other in others:
        other.close()  # else their processes would not see the end of the first
    if shared is not None:
        shared.take(number)
    _become_one_of_several(session.config, line, number)
    try:
        for items in _received(files, line):
            for item, following in zip(items, [*items[1:], session], strict=True):  # the session's fixtures stay
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            line.send(("next", None))
    except BrokenPipeError:
        pass
    finally:
        try:
            session._setupstate.teardown_exact(None)
        finally:
            session.config._ensure_unconfigure()


def _received(files: Sequence[Sequence[pytest.Item]], line: Connection) -> Iterator[Sequence[pytest.Item]]:
    try:
        while (place := line.recv()) is not None:
            yield files[place]
    except (EOFError, ConnectionResetError):
        return


def _become_one_of_several(config: pytest.Config, line: Connection, number: int) -> None:
    """Nothing that the processes write is shared: neither the files of captured output nor folders of tests."""
    plugins = config.pluginmanager
    plugins.unregister(name="terminalreporter")
    plugins.register(_Sender(config, line))
    if (capture := plugins.getplugin("capturemanager")) is not None:
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
    folders = _folders(config)
    folders._basetemp = folders.mktemp(f"process-{number}", numbered=False)


def _folders(config: pytest.Config) -> pytest.TempPathFactory:
    """What `tmp_path_factory` is in tests."""
    folders: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    return folders
