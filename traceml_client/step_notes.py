"""The sentences a rank leaves for the report about its own measuring: what is missing, and why.

They stand in the ring, so that a killed rank's are read too, and are taken back where they turn out to be wrong.
"""

from __future__ import annotations

from traceml_client.protocol.columns import NOT_MEASURED, PHASES
from traceml_client.recorder import Recorder

NO_STEPS = (
    "no steps are counted: no torch optimizer has stepped; "
    "put the body of the training loop into `with traceml_client.trace_step():`"
)
HOST_CLOCK = "phases are host times: work that runs on the accelerator afterwards is in the phase that waits for it"

MANY_BACKWARDS = 3
"""Backwards without an optimizer step after which a loop without a torch optimizer is told so."""
VERY_MANY_BACKWARDS = 256
"""The same where a torch optimizer exists: it may be accumulating."""
_FIRST_EXPLAINED = 4
"""The first steps compile, search and allocate: what is missing in them may still come."""

_FIRST_VALUE = 2
"""Of a step record: flags and end time stand before the phases."""

_REASONS = {
    0: "the training thread got no batch from a torch DataLoader with gradients enabled",
    2: "no call of a module that owns the optimizer's parameters was seen (a call inside a compiled function is not)",
    3: "torch computed no gradients",
    4: "no torch optimizer stepped",
}


class StepNotes:
    """Knows what the step clock could not measure."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._num_backwards = 0
        self._explained: dict[int, str] = {}
        self.has_optimizer = False
        """A torch optimizer exists in this process, whether or not it has stepped."""

    def see_backward(self) -> None:
        """A backward in the first step."""
        self._num_backwards += 1
        limit = VERY_MANY_BACKWARDS if self.has_optimizer else MANY_BACKWARDS
        if self._num_backwards == limit:
            self._recorder.add_note(NO_STEPS)

    def see_accelerator(self) -> None:
        """The model's work is done by another device, later than it is asked for."""
        self._recorder.add_note(HOST_CLOCK)

    def see_block(self) -> None:
        """The script declares its steps itself."""
        self._recorder.drop_note(NO_STEPS)

    def explain(self, num_steps: int) -> None:
        """Called after steps 1, 2, 4, 8 ... and at the end: say what the last one lacks and why, or no longer."""
        if num_steps == 0 and self._num_backwards >= MANY_BACKWARDS:
            self._recorder.add_note(NO_STEPS)
        if num_steps == 1:
            self._recorder.drop_note(NO_STEPS)
        last = self._recorder.last_step()
        if num_steps < _FIRST_EXPLAINED or last is None:
            return
        for phase, reason in _REASONS.items():
            is_null = last[_FIRST_VALUE + phase] == NOT_MEASURED
            if is_null and phase not in self._explained:
                self._explained[phase] = f"{PHASES[phase]} is not measured: {reason}"
                self._recorder.add_note(self._explained[phase])
            elif not is_null and phase in self._explained:
                self._recorder.drop_note(self._explained.pop(phase))
