"""The only place that touches torch: feeds the step clock from hooks that are set once the script has imported it.

`install` and what it imports need torch; this module, `import_watch` and `optimizer_table` do not.
"""

from __future__ import annotations

from types import ModuleType

from traceml_client import steps
from traceml_client.recorder import Recorder
from traceml_client.torch_hooks.import_watch import ImportWatch
from traceml_client.torch_hooks.optimizer_table import OptimizerTable

_COMPILER_CALLBACKS = "torch._dynamo.callback"


def install_when_imported(recorder: Recorder, report_fault: steps.ReportFault) -> None:
    """Measure this process's training: at once if torch is there already, else as soon as the script imports it.

    Args:
        report_fault: takes every error of the hooks, see `steps.ReportFault`; training never sees one.
    """
    table = OptimizerTable()
    measuring = steps.start(recorder, report_fault, is_replacing=table.is_replacing)
    table.forget = measuring.clock.forget_optimizer

    def on_torch(_torch: ModuleType) -> None:
        from traceml_client.torch_hooks.install import install

        install(measuring, table)

    def on_compiler(callbacks: ModuleType) -> None:
        callbacks.callback_handler.register_start_callback(lambda _event: measuring.clock.see_disturbance())

    watch = ImportWatch({"torch": on_torch, _COMPILER_CALLBACKS: on_compiler}, measuring.fault)
    watch.begin()
