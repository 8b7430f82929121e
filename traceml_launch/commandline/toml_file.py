"""`traceml.toml` in the working directory: options by name at its top level, with `-` or `_` between words."""

from __future__ import annotations

from pathlib import Path

from traceml_client.protocol.errors import ConfigError
from traceml_launch.commandline import torchrun_options
from traceml_launch.commandline.layers import FILE_NAME, TARGET_SWITCHES
from traceml_launch.commandline.options import BY_SPELLING, suggestion


def read(folder: Path) -> dict[str, str]:
    """Key with hyphens -> text of its value; empty if the file is not there.

    Raises:
        ConfigError: it cannot be read, is no TOML, or has a key or a value that is no option's.
    """
    path = folder / FILE_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{FILE_NAME} cannot be read: {error.strerror}") from None
    import tomllib  # 30 ms that only those pay who have such a file

    try:
        document = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{FILE_NAME} is no TOML: {error}") from None
    return {_key(written): _text(written, value) for written, value in document.items()}


def _key(written: str) -> str:
    name = "--" + written.replace("_", "-")
    passed_on = (torchrun_options.SWITCHES | torchrun_options.VALUED) - set(TARGET_SWITCHES)
    if name in BY_SPELLING or name in passed_on:
        return name.removeprefix("--")
    nearest = suggestion(name, [*BY_SPELLING, *passed_on]).replace("--", "")
    raise ConfigError(f"{FILE_NAME}: {written} is no option{nearest}")


def _text(written: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(f"{FILE_NAME}: {written} must be a string, a number, true or false")
