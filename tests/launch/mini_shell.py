"""A shell with job control, as small as it gets: runs one command in the foreground of its terminal.

`python -m tests.launch.mini_shell COMMAND...`. When the command stops it says `[stopped]`, waits for a line, and brings
it back to the foreground; at its end it says `[exit CODE]`.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpgrp())
        for number in (signal.SIGTTOU, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(sys.argv[1], sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED)
        holder = os.tcgetpgrp(0)
        os.tcsetpgrp(0, os.getpgrp())
        if not os.WIFSTOPPED(status):
            print(f"[exit {os.waitstatus_to_exitcode(status)}]", flush=True)
            return
        print(f"[stopped, terminal with {'the job' if holder == pid else 'another group'}]", flush=True)
        sys.stdin.readline()
        os.tcsetpgrp(0, pid)
        os.killpg(pid, signal.SIGCONT)


if __name__ == "__main__":
    main()
