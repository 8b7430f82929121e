"""Room on the run's volume that is taken at the start, so that a volume which fills up still takes the last files."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from traceml_client.protocol.launch import AGGREGATOR_DIR

RESERVE_FILE: Final = f"{AGGREGATOR_DIR}/reserve"
_BASE_BYTES: Final = 1 << 20
_BYTES_EACH: Final = 8 << 10
"""For one rank's part of the reports, twice: a new file is there before the old one goes."""
MANIFEST_BYTES: Final = 64 << 10


class Reserve:
    """One file. Every method blocks; none raises: without a reserve everything goes on as long as there is room."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / RESERVE_FILE

    def take(self, num_ranks: int) -> None:
        """What the reports of that many ranks need; nothing where there is not so much."""
        size = _BASE_BYTES + num_ranks * _BYTES_EACH
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, size)
            except OSError:
                os.unlink(self._path)
            finally:
                os.close(fd)

    def lend(self, num_bytes: int) -> None:
        """Give back a part."""
        with contextlib.suppress(OSError):
            os.truncate(self._path, max(0, self._path.stat().st_size - num_bytes))

    def release(self) -> None:
        """Give back all of it. Legal twice."""
        with contextlib.suppress(OSError):
            self._path.unlink()
