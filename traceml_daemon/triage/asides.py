"""Lines beside an exception that explains itself: what a tool, a monitor or a shell printed in passing. Pure."""

from __future__ import annotations

from typing import Final

from traceml_daemon.triage.causes import Cause, Tier
from traceml_daemon.triage.ends import End

_OF_CODE: Final = frozenset(
    {
        "KeyError",
        "IndexError",
        "TypeError",
        "AttributeError",
        "NameError",
        "UnboundLocalError",
        "ZeroDivisionError",
        "ValueError",
    }
)
"""No full disk and no missing program makes Python raise these."""
_OF_NOTHING: Final = "NoneType"
"""Something was not there before, and its own line may say so."""
CHORES: Final = frozenset(
    {
        "disk_full",
        "command_not_found",
        "compile_error",
        "too_many_open_files",
        "port_in_use",
        "bad_cli_args",
        "file_not_found",
        "permission_denied",
        "hub_access",
        "import_error",
    }
)
_OF_VALUES: Final = frozenset({"numerical_failure", "cuda_device_assert"})


def without_asides(causes: list[Cause]) -> list[Cause]:
    """Where a whole traceback explains itself, only another traceback or a record stands beside it."""
    if not any(explains_itself(cause) for cause in causes):
        return causes
    return [cause for cause in causes if not _is_aside(cause)]


def explains_itself(cause: Cause) -> bool:
    """Whether it is the uncaught error of a script, which nothing else has to lead to."""
    raised = cause.raised
    if raised is None or cause.category != "python_exception" or cause.is_weak:
        return False
    is_whole = raised.has_header and bool(raised.frames)
    return is_whole and raised.short_type in _OF_CODE and _OF_NOTHING not in raised.message


def _is_aside(cause: Cause) -> bool:
    raised = cause.raised
    if cause.tier == Tier.RECORD or (raised is None and cause.category in _OF_VALUES):
        return False
    is_whole = raised is not None and (raised.has_header or bool(raised.frames))
    return not is_whole and (raised is None or not (cause.is_attributed or cause.category == "python_exception"))


def without_chores(causes: list[Cause], ends: list[End]) -> list[Cause]:
    """A process that was killed or crashed did not end of what makes a program say so and leave."""
    own = [end for end in ends if not end.is_by_agent]
    if not own or not all(end.is_fatal for end in own):
        return causes
    return [cause for cause in causes if cause.raised is not None or cause.category not in CHORES]
