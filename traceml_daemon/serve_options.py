"""Pure: what was said about the options of `serve` -> one validated `ServeConfig`.

Flag, TRACEML_* variable, traceml.toml, default, in this order; a value that does not parse is an error that names where
it stood.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from traceml_client.protocol.environ import DEFAULT_AGGREGATOR_PORT, TOKEN, option_variable
from traceml_client.protocol.errors import ConfigError
from traceml_daemon.config import MAX_WORLD_SIZE, ServeConfig, check_run_name

CONFIG_FILE: Final = "traceml.toml"


def build_serve_config(
    flags: Mapping[str, str | None], environ: Mapping[str, str], file: Mapping[str, Any], *, folder: Path
) -> tuple[ServeConfig, Path | None]:
    """Return the configuration, and the token file that still has to be read into it.

    Args:
        flags: option name without hyphens in front -> text; null where it was not given.
        file: the top level of traceml.toml; keys of other commands are passed over.
        folder: what relative paths are relative to.

    Raises:
        ConfigError: one line that names the option, variable or key.
    """

    def get(name: str, parse: Callable[[str], Any], default: Any) -> Any:
        source, text = find_option(name, flags, environ, file)
        if text is None:
            return default
        try:
            return parse(text)
        except ValueError as error:
            raise ConfigError(f"{source} {text!r}: {error}") from None

    token_file = get("token-file", _path, None)
    config = ServeConfig(
        logs_dir=folder / get("logs-dir", _path, Path("logs")),
        run_name=get("run-name", _run_name, None),
        nnodes=get("nnodes", _count, 1),
        nproc_per_node=get("nproc-per-node", _count, 0),
        port=get("aggregator-port", _port, DEFAULT_AGGREGATOR_PORT),
        bind_host=get("aggregator-bind-host", _text, "127.0.0.1"),
        token=environ.get(TOKEN, ""),
        finalize_timeout_s=get("finalize-timeout-sec", _seconds_above_zero, 300.0),
        settle_s=get("settle-sec", _seconds, 1.0),
        tls_cert=get("tls-cert", _text_of_path(folder), ""),
        tls_key=get("tls-key", _text_of_path(folder), ""),
    )
    return _checked(config), None if token_file is None else folder / token_file


def _checked(config: ServeConfig) -> ServeConfig:
    if bool(config.tls_cert) != bool(config.tls_key):
        raise ConfigError("--tls-cert and --tls-key go together: a certificate and its key")
    return config


def read_config_file(folder: Path) -> dict[str, Any]:
    """traceml.toml's top level with hyphens in its keys; empty if the file is not there. Blocks.

    Raises:
        ConfigError: it cannot be read or is no TOML.
    """
    try:
        data = (folder / CONFIG_FILE).read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{CONFIG_FILE} cannot be read: {error.strerror}") from None
    import tomllib  # 30 ms that only those pay who have such a file

    try:
        document = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{CONFIG_FILE} is no TOML: {error}") from None
    return {key.replace("_", "-"): value for key, value in document.items()}


def find_option(
    name: str, flags: Mapping[str, str | None], environ: Mapping[str, str], file: Mapping[str, Any]
) -> tuple[str, str | None]:
    """Where the option says something, and what; null where nothing does."""
    flag = flags.get(name)
    if flag is not None:
        return f"--{name}", flag
    variable = option_variable(name)
    if environ.get(variable):
        return variable, environ[variable]
    if name in file:
        return f"{CONFIG_FILE}: {name}", str(file[name])
    return f"--{name}", None


def _path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError("it is no path")
    return Path(text).expanduser()


def _text_of_path(folder: Path) -> Callable[[str], str]:
    return lambda text: str(folder / _path(text))


def _run_name(text: str) -> str:
    try:
        return check_run_name(text)
    except ConfigError as error:
        raise ValueError(str(error).partition(": ")[2]) from None


def _text(text: str) -> str:
    if not text or any(character.isspace() for character in text):
        raise ValueError("it is empty or has a blank in it")
    return text


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise ValueError("a port is a number up to 65535; 0 takes any free one")
    return int(text)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_WORLD_SIZE:
        raise ValueError("it must be a whole number of at least 1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError("it must be a number of seconds, not negative")
    return seconds


def _seconds_above_zero(text: str) -> float:
    seconds = _seconds(text)
    if seconds == 0:
        raise ValueError("it must be above 0")
    return seconds
