"""`gateway prices update`: the newest price table into the file that the configuration names. The one command that uses
the network for prices."""

from __future__ import annotations

import http.client
import json
import os
import tempfile
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

from gateway.config.price_table import PriceTable, UnreadableTable

from .common import fail, put

TIMEOUT_S = 30
MAX_BYTES = 33_554_432
"""The table has half a megabyte; what is much longer is no table."""

FEWEST_MODELS = 100
"""A table with fewer is taken for a mistake, and the file stays as it is."""


def update(file: str | None, url: str | None) -> int:
    """Write the file; returns the exit code. `url`: from here instead of the package's own address."""
    from genai_prices.update_prices import DEFAULT_UPDATE_URL

    if file is None:
        return fail("prices.file is not set: the configuration has to name the file that is written", code=2)
    source = url or DEFAULT_UPDATE_URL
    try:
        text = _download(source)
        kept = json.dumps({"date": datetime.now(UTC).date().isoformat(), "from": source, "providers": json.loads(text)})
        table = PriceTable(datetime.now(UTC), kept)
        number = sum([len(table.names(provider)) for provider in table.providers()])
        if number < FEWEST_MODELS:
            return fail(f"{source} has {number} models, which is no price table; {file} is unchanged")
        _write(Path(file), kept)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        return fail(f"cannot download {source}: {getattr(error, 'reason', None) or error}; {file} is unchanged")
    except (UnreadableTable, ValueError) as error:
        return fail(f"{source} is no price table that this version can read ({error}); {file} is unchanged")
    except OSError as error:
        return fail(f"cannot write {file}: {(error.strerror or str(error)).lower()}")
    return put(f"{file} has {number} names of models of {len(table.providers())} providers, from {source}.\n")


def _download(url: str) -> str:
    """Raises `URLError`, `HTTPException`, `TimeoutError`, and `ValueError` for what is no address or too long."""
    if not url.startswith(("https://", "http://")):
        raise ValueError("expected an address that begins with https://")
    request = urllib.request.Request(url, headers={"User-Agent": "completions-gateway"})  # noqa: S310 - checked above
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
        data: bytes = answer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    return data.decode()


def _write(path: Path, text: str) -> None:
    """All of it or nothing: a gateway may read the file at any moment. Raises `OSError`."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as new:
            new.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
