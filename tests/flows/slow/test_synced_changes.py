"""A change by an operator is on the disk before it is acknowledged, with the embedded store, too.

The gateway runs with a library in front of the C library that notes each file that is synced.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Stage, StartsGateways
from tests.flows.house import key, settings
from tests.flows.steering import Operator

NOTES_SYNCS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int synced(const char *call, int fd) {
  int result = ((int (*)(int))dlsym(RTLD_NEXT, call))(fd);
  char link[64], line[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, line, sizeof line - 1);
  const char *notes = getenv("SYNC_NOTES");
  if (result || length < 0 || !notes)
    return result;
  line[length] = '\n';
  int out = open(notes, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (write(out, line, length + 1) < 0)
    abort();
  close(out);
  return result;
}

int fsync(int fd) { return synced("fsync", fd); }
int fdatasync(int fd) { return synced("fdatasync", fd); }
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    assert shutil.which("cc"), "cc is not installed; Debian and Ubuntu: apt-get install gcc libc6-dev"
    built = tmp_path / "notes_syncs.so"
    source = tmp_path / "notes_syncs.c"
    source.write_text(NOTES_SYNCS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", built, source, "-ldl"], check=True)
    return built


def test_each_change_is_on_the_disk_before_its_answer(
    gateway: StartsGateways, theatre: Stage, library: Path, tmp_path: Path
) -> None:
    notes = tmp_path / "synced"
    house = gateway(
        settings(theatre.url, keys=[key("filed", quotas=[{"requests": 10, "per": "day"}])]),
        env={"LD_PRELOAD": str(library), "SYNC_NOTES": str(notes)},
    )
    operator = Operator(house)

    def syncs() -> int:
        return sum(line.endswith(".sqlite-wal") for line in notes.read_text().splitlines())

    changes: list[Callable[[], object]] = [
        lambda: operator.create("issued"),
        lambda: operator.done("PATCH", "keys/issued", {"max_parallel": 7}),
        lambda: operator.done("POST", "keys/filed/top_up", {"requests": 90, "per": "day"}),
        lambda: operator.done("POST", "keys/filed/reset"),
        lambda: operator.done("POST", "teams", {"name": "red", "quotas": []}),
        lambda: operator.done("DELETE", "keys/issued"),
        lambda: operator.done("DELETE", "keys/filed"),
    ]
    for change in changes:
        before = syncs()
        change()
        assert syncs() > before
