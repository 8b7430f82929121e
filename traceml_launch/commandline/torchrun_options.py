"""torchrun's own options and how many values each takes: enough to find SCRIPT behind them, nothing more.

The table is torch 2.13's. An option that it does not know may be of another version, so the torchrun that is installed
beside us is asked before anything is called unknown: its `run.py` is read as text, for importing torch takes seconds.
"""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path

SWITCHES = {"--standalone", "--module", "-m", "--no-python", "--run-path", "--virtual-local-rank"}
"""Options without a value."""
VALUED = {
    "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--max-restarts", "--monitor-interval", "--role",
    "--start-method", "--event-log-handler", "--log-dir", "--redirects", "-r", "--tee", "-t", "--local-ranks-filter",
    "--duplicate-stdout-filters", "--duplicate-stderr-filters", "--local-addr", "--logs-specs", "--numa-binding",
    "--signals-to-handle", "--shutdown-timeout",
}  # fmt: skip
LONG_OF_SHORT = {"-m": "--module", "-r": "--redirects", "-t": "--tee"}
PASSED_ON = sorted((SWITCHES | VALUED) - {*LONG_OF_SHORT, "--module", "--no-python"})
"""What a variable or a file may say too; not what SCRIPT is."""


def takes_value(name: str) -> bool | None:
    """Whether this option of torchrun (with hyphens, without a value) has a value; null if torchrun lacks it."""
    if name in SWITCHES or name in VALUED:
        return name in VALUED
    return _installed().get(name)


def known_names() -> list[str]:
    """For a suggestion of the nearest match."""
    return sorted({*SWITCHES, *VALUED, *_installed()} - set(LONG_OF_SHORT))


@cache
def _installed() -> dict[str, bool]:
    """Option with hyphens -> whether it takes a value. Empty where no torch is found or its file cannot be read."""
    try:
        found = importlib.util.find_spec("torch")
        if found is None or found.origin is None:
            return {}
        return declared_options((Path(found.origin).parent / "distributed" / "run.py").read_bytes())
    except (OSError, SyntaxError, ValueError, ImportError):
        return {}


def declared_options(source: bytes) -> dict[str, bool]:
    """The options that the `add_argument` calls of this source declare. Raises SyntaxError, ValueError."""
    declared: dict[str, bool] = {}
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            is_valued = not any(word.arg == "action" and _is_switch(word.value) for word in call.keywords)
            for argument in call.args:
                if isinstance(argument, ast.Constant) and str(argument.value).startswith("-"):
                    declared[str(argument.value).replace("_", "-")] = is_valued
    return declared


def _is_switch(action: ast.expr) -> bool:
    """torchrun's own action for switches, or argparse's."""
    if isinstance(action, ast.Name):
        return action.id == "check_env"
    return isinstance(action, ast.Constant) and action.value in ("store_true", "store_false")
