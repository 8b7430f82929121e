"""The files of the failure catalogue, which come with the package. Blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from traceml_client.protocol.errors import BrokenInstall

_TRIAGE: Final = Path(__file__).parents[1] / "triage"
_FOLDER: Final = _TRIAGE / "catalog"
ENDINGS_FILE: Final = _TRIAGE / "endings.toml"


def entry_files() -> dict[str, Path]:
    """The file of each category, sorted.

    Raises:
        BrokenInstall: there are none: without them every failure would be one that nobody knows.
    """
    files = {path.stem: path for path in sorted(_FOLDER.glob("*.toml"))}
    if not files:
        raise BrokenInstall(_FOLDER, "holds no failure catalogue")
    return files


def entry_file(category: str) -> Path:
    return _FOLDER / f"{category}.toml"


def read_text(path: Path) -> str:
    """Raises BrokenInstall."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BrokenInstall(path, f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise BrokenInstall(path, f"is damaged ({error})") from None
