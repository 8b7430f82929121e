"""torchrun's own options and how many values each takes: enough to find SCRIPT behind them, nothing more.

The table is torch 2.13's. An option that it does not know may be of another version, so the torchrun that is installed
beside us is asked before anything is called unknown.
"""

from __future__ import annotations

from functools import cache

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
    from traceml_launch.commandline import installed_torchrun

    return installed_torchrun.options()
