"""The options of the torchrun beside us, read from its `run.py` as text: importing torch would take seconds."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path


def options() -> dict[str, bool]:
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
