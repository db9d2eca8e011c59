"""Libraries in front of the C library (LD_PRELOAD): what a process asks the kernel for is noted or changed.

A C compiler is needed; one that is missing fails the test and says so.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

NOTES_SYNCS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
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
"""Appends the path of each file that is synced to the file SYNC_NOTES."""

MOVES_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real)
    real = dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(clock, now);
  const char *path = getenv("CLOCK_AHEAD");
  if (clock != CLOCK_REALTIME || !path)
    return result;
  char text[32] = "";
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file >= 0) {
    if (read(file, text, sizeof text - 1) > 0)
      now->tv_sec += atoll(text);
    close(file);
  }
  return result;
}
"""
"""The wall clock is ahead by the seconds in the file CLOCK_AHEAD."""


def library(source: str, folder: Path) -> Path:
    """Build it in this folder."""
    assert shutil.which("cc"), "cc is not installed; Debian and Ubuntu: apt-get install gcc libc6-dev"
    text, built = folder / "preloaded.c", folder / "preloaded.so"
    text.write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", built, text, "-ldl"], check=True)
    return built
