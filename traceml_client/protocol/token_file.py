"""`--token-file`: the shared secret of a run as one line in a file, checked the same by launcher and daemon."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from traceml_client.protocol.errors import ConfigError

MAX_BYTES: Final = 4096
"""A token is a line; whatever is larger was not meant to be one."""


def read_token_file(path: Path, *, source: str) -> str:
    """The secret, without blanks at its ends. Blocks.

    Args:
        source: the option or variable that names the file, for the error.

    Raises:
        ConfigError: it cannot be read, is empty, or holds more than one line; the text shows nothing of what is in it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{source} {path} cannot be read: {error.strerror}") from None
    token = data.decode(errors="replace").strip()
    if not token:
        raise ConfigError(f"{source} {path} is empty")
    if not token.isprintable() or "\ufffd" in token or len(data) > MAX_BYTES:
        raise ConfigError(f"{source} {path} must hold the token alone: one line of text")
    return token


def exposure(path: Path) -> str | None:
    """A sentence where others on this host may read the file; null where only its owner can."""
    mode = path.stat().st_mode
    if not mode & (stat.S_IRGRP | stat.S_IROTH):
        return None
    return f"the token in {path} can be read by others on this host (mode {stat.S_IMODE(mode):04o}): chmod 600 {path}"
