"""torchrun's own options and how many values each takes: enough to find SCRIPT behind them, nothing more.

The table is torch 2.13's. An option that it does not know may be of another version, so the `run.py` of the torch
installed beside us is read (as text: importing torch takes seconds) before anything is called unknown.
"""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path

SWITCHES = frozenset({"--standalone", "--module", "-m", "--no-python", "--run-path", "--virtual-local-rank"})
"""Options without a value."""
VALUED = frozenset(
    {
        "--rdzv-backend",
        "--rdzv-endpoint",
        "--rdzv-id",
        "--rdzv-conf",
        "--max-restarts",
        "--monitor-interval",
        "--start-method",
        "--event-log-handler",
        "--role",
        "--log-dir",
        "--redirects",
        "-r",
        "--tee",
        "-t",
        "--local-ranks-filter",
        "--duplicate-stdout-filters",
        "--duplicate-stderr-filters",
        "--local-addr",
        "--logs-specs",
        "--numa-binding",
        "--signals-to-handle",
        "--shutdown-timeout",
    }
)
LONG_OF_SHORT = {"-m": "--module", "-r": "--redirects", "-t": "--tee"}


def takes_value(name: str) -> bool | None:
    """Whether this option of torchrun is followed by a value; null if torchrun does not have it.

    Args:
        name: with hyphens, without a value.
    """
    if name in SWITCHES:
        return False
    if name in VALUED:
        return True
    return _installed().get(name)


def known_names() -> list[str]:
    """For a suggestion of the nearest match."""
    return sorted({*SWITCHES, *VALUED, *_installed()} - set(LONG_OF_SHORT))


@cache
def _installed() -> dict[str, bool]:
    """What the torch beside us says: option with hyphens -> takes a value. Empty where none is found."""
    try:
        found = importlib.util.find_spec("torch")
        if found is None or found.origin is None:
            return {}
        tree = ast.parse((Path(found.origin).parent / "distributed" / "run.py").read_bytes())
    except (OSError, SyntaxError, ValueError, ImportError):
        return {}
    return _declared_options(tree)


def _declared_options(tree: ast.Module) -> dict[str, bool]:
    options: dict[str, bool] = {}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            is_valued = not any(word.arg == "action" and _is_switch(word.value) for word in call.keywords)
            for argument in call.args:
                if isinstance(argument, ast.Constant) and str(argument.value).startswith("-"):
                    options[str(argument.value).replace("_", "-")] = is_valued
    return options


def _is_switch(action: ast.expr) -> bool:
    if isinstance(action, ast.Name):
        return action.id == "check_env"
    return isinstance(action, ast.Constant) and action.value in ("store_true", "store_false")
