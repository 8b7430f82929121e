"""The terminal's foreground: lent to torchrun's process group while it runs, as a shell would.

So a terminal's Ctrl-C reaches torchrun once and directly, and `pdb` in a rank can read the terminal. Ctrl-Z stops the
whole command and `fg` resumes it. Without a terminal, or in the background, nothing here does anything.
"""

from __future__ import annotations

import contextlib
import os
import signal


class Foreground:
    """The controlling terminal of this session, if there is one."""

    def __init__(self) -> None:
        self._group = os.getpgrp()
        self._borrower = 0
        self._terminal = -1
        with contextlib.suppress(OSError):
            self._terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        if self._terminal >= 0:
            # From the background both writing to the terminal and taking it back would stop us.
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)

    @property
    def is_ours(self) -> bool:
        """Whether the launcher's own group is in the foreground now."""
        return self._terminal >= 0 and self._holder() == self._group

    def lend(self, group: int) -> None:
        """Put `group` into the foreground if we are there; remember it for `resume`."""
        self._borrower = group
        if self.is_ours:
            self._give_to(group)

    def take_back(self) -> None:
        """After torchrun's end: we are in the foreground again if torchrun's group was."""
        self._take_for_shell()
        self._borrower = 0

    def stop_ourselves(self, *, is_from_terminal: bool) -> None:
        """Stop as Ctrl-Z does; returns once resumed, or at once where nobody could resume us (an orphaned group).

        `is_from_terminal`: the whole group of the launcher stops (a pipeline's other programs), as it would have if
        it had been in the foreground itself.
        """
        before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        self._take_for_shell()
        os.kill(0 if is_from_terminal else os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, before)
        if self._borrower and self.is_ours:
            self._give_to(self._borrower)

    def close(self) -> None:
        """Legal twice."""
        if self._terminal >= 0:
            os.close(self._terminal)
            self._terminal = -1

    def _take_for_shell(self) -> None:
        """A shell that sees its job stop expects that job's own group in the foreground."""
        if self._borrower and self._terminal >= 0 and self._holder() == self._borrower:
            self._give_to(self._group)

    def _holder(self) -> int:
        try:
            return os.tcgetpgrp(self._terminal)
        except OSError:
            return -1

    def _give_to(self, group: int) -> None:
        with contextlib.suppress(OSError):
            os.tcsetpgrp(self._terminal, group)
