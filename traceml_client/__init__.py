"""Measures a training script from inside each rank. Under `traceml run` a script needs none of these names."""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own costs 10 ms to import
if TYPE_CHECKING:
    from traceml_client.client import init, stop
    from traceml_client.figures import final_summary, summary
    from traceml_client.steps import trace_step

__all__ = ["final_summary", "init", "stop", "summary", "trace_step"]


def __getattr__(name: str) -> object:
    """Load a public name when it is asked for: `import traceml_client` alone costs next to nothing."""
    if name in ("init", "stop"):
        from traceml_client import client

        return getattr(client, name)
    if name in ("summary", "final_summary"):
        from traceml_client import figures

        return getattr(figures, name)
    if name == "trace_step":
        from traceml_client.steps import trace_step

        return trace_step
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
