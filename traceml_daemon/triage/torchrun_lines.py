"""What torchrun and other launchers say about their workers: exits, signals, restarts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from traceml_daemon.triage import leftovers
from traceml_daemon.triage.lines import Line
from traceml_daemon.triage.observations import AgentSignal, Exit, Observations, Place
from traceml_daemon.triage.quotes import place_at

SIGNAL_NUMBERS: Final = {
    "HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "TRAP": 5, "ABRT": 6, "BUS": 7, "FPE": 8, "KILL": 9, "USR1": 10,
    "SEGV": 11, "USR2": 12, "PIPE": 13, "TERM": 15,
}  # fmt: skip
_SLURM_WORDS: Final = {
    "Killed": -9, "Terminated": -15, "Segmentation fault": -11, "Aborted": -6, "Bus error": -7,
    "Illegal instruction": -4, "Floating point exception": -8, "Out Of Memory": -9, "Interrupt": -2, "Hangup": -1,
}  # fmt: skip

LITERALS: Final = (
    "exitcode", "closing signal", "via signal", "death signal", "got signal", "unable to shutdown process",
    "exits with return code", "returned non-zero exit status", "died with <signals", "terminated with",
    "childfailederror", "will restart worker group", "rendezvous'ing worker group", "exited with exit code",
    "no_other_failures", "root cause", "rank      :", "rank: ", "world_size=", "num_local_procs", "failures:",
    "child process", "exit code", "exit status", "exit_code", "exited with", "killed", "exited on signal", ": line ",
    "killing subprocess", "remote=[", "process name: [", " running at ", "mpi_abort", "exit string", "errorcode",
    "exit code:", "srun: error:", "stopping worker group", "rank       :", "num_processes",
    "global_ranks=", "omp_num_threads environment", "starting elastic_operator", *leftovers.LITERALS,
)  # fmt: skip
"""Words of which at least one stands in every line that this module reads, in lower case."""

_FAILED: Final = re.compile(r"failed \(exitcode: (-?\d{1,12})\) local_rank: (\d{1,12}) \(pid: (\d{1,12})\)")
_OLD_FAILED: Final = re.compile(r"Child process (\d{1,12}) \(local_rank (\d{1,12})\) FAILED \(exitcode (-?\d{1,12})\)")
_SENT: Final = re.compile(
    r"(?:Sending process (\d{1,12}) closing signal|Closing process (\d{1,12}) via signal) "
    r"(?:Signals\.)?(?:SIG(\w+)|CTRL_\w+_EVENT)"
)
_RECEIVED: Final = re.compile(r"Received (?:Signals\.)?(?:SIG)?(\w+) death signal")
_GOT: Final = re.compile(r"SignalException: Process (\d{1,12}) got signal: (\d{1,12})")
_FORCED: Final = re.compile(r"Unable to shutdown process (\d{1,12}) via")
_DEEPSPEED: Final = re.compile(r"\] (\[.+\]) exits with return code = (-?\d{1,12})")
_KILLING: Final = re.compile(r"Killing subprocess (\d{1,12})")
_CALLED: Final = re.compile(
    r"CalledProcessError: Command '?(.+?)'? "
    r"(?:returned non-zero exit status (\d{1,12})|died with <Signals\.SIG(\w+): \d+>)"
)
_LOCAL_RANK: Final = re.compile(r"--local[_-]rank=(\d{1,12})")
_SPAWN: Final = re.compile(
    r"process (\d{1,12}) terminated with (?:signal SIG(\w+)|exit code (\d{1,12}))"
    r"|[Pp]rocess (\d{1,12}) (?:exited|terminated) with (?:exit)?code (-?\d{1,12})"
)
_CHILD: Final = re.compile(r"\[rank: (\d{1,12})\] Child process with PID \d+ terminated with code (-?\d{1,12})")
_ENDED_RANK: Final = re.compile(
    r"\b(?:Global )?[Rr]ank (\d{1,9})(?: \(PID (\d{1,12})\))? (?:exited|crashed) with (?:exit )?code (-?\d{1,12})"
    r"|^Process (\d{1,9}) exit with status code (\d{1,12})"
)
"""Of composer and of horovodrun."""
_EVENT: Final = re.compile(r'status\.FAILED".*?"global_rank": (\d{1,9}), .*?"worker_id": "(\d{1,12})"')
"""What torch 1.8 and 1.9 print of each worker that failed, beside the line of the first one, which has its code."""
_BY_SIGNAL: Final = re.compile(
    r"(?i)\bexit(?:ed with|s with)?(?:[ _]?(?:code|status)[\"']?[ :=]*| )"
    r"(13[24-79]|143|0x[CE][0-9A-F]{7}|3[2-7]\d{8}|-\d{9,10})\b"
)
"""128 + n: a shell, a container runtime or an IDE saw a signal; or a code that only Windows gives."""
_SHELL: Final = re.compile(r"line \d+: +(\d{1,12}) (Killed|Segmentation fault|Aborted|Bus error|Terminated)\b")
_MPIRUN: Final = re.compile(r"process rank (\d{1,12}) .*exited on signal (\d{1,12})")
_MPI_WHO: Final = re.compile(
    r"Process name: \[(?:\[\d+,\d+\]|[\w.@-]+),\s*(\d{1,6})\]|RANK (\d{1,6}) PID (?P<pid>\d{1,12}) RUNNING AT"
    r"|MPI_ABORT was invoked on rank (\d{1,6}) |Process name: (\d{1,6})$"
)
_MPI_HOW: Final = re.compile(
    r"(?:EXIT CODE|Exit code): +(\d{1,12})$|KILLED BY SIGNAL: (\d{1,3})\b|with errorcode (-?\d{1,12})"
)
"""The line below, or the one after it."""
_MPI_SIGNAL: Final = re.compile(r"EXIT STRING: .*\(signal (\d{1,3})\)")
_MPI_ABORT: Final = re.compile(r"MPI_Abort\(MPI_COMM_WORLD, (-?\d{1,12})\) - process (\d{1,6})")
_SRUN_EXIT: Final = re.compile(
    r"srun: error: (\S+): tasks? ([\d,-]+): "
    r"(?:Exited with exit code (\d{1,12})|([A-Z][A-Za-z ]+?))(?: \(core dumped\))?\s*$"
)
_WORLD: Final = re.compile(
    r"\b(?:dist_world_size|world_size|num_local_procs|group_world_size|num_processes)['\"]?\s*[=:]\s*(\d{1,12})"
)

_HOSTS: Final = re.compile(r"\baddr=\[([^\]]+)\]:\d+, remote=\[([^\]]+)\]:\d")
_LOCAL: Final = re.compile(r"localhost|127\.|::1$|::ffff:127\.")
_GLOBAL: Final = re.compile(r"\bglobal_ranks=\[(\d{1,6}(?:, ?\d{1,6})*)\]")

_WRAPPER: Final = re.compile(r"ChildFailedError|CHILD PROCESS FAILED WITH NO ERROR_FILE|ProcessRaisedException")
_RESTART: Final = re.compile(r"will restart worker group|Stopping worker group|Rendezvous'ing worker group")

_LAUNCH: Final = re.compile(
    r"Setting OMP_NUM_THREADS environment variable for each process|Starting elastic_operator with"
)


class TorchrunLines:
    """Takes the lines of launchers; what they say goes into the observations."""

    def __init__(self, seen: Observations) -> None:
        self._seen = seen
        self._mpi_who: tuple[int, int | None] | None = None
        """Rank and process of which MPI's launcher is about to say how it ended."""

    def take(self, line: Line, place: Place) -> bool:
        """Whether the line was a launcher's."""
        readings = [reader(self, line, place) for reader in _READERS]
        return any(readings)

    def _failed(self, line: Line, place: Place) -> bool:
        found = _FAILED.search(line.text)
        if found is not None:
            code, local_rank, pid = (int(value) for value in found.groups())
        else:
            found = _OLD_FAILED.search(line.text)
            if found is None:
                return False
            pid, local_rank, code = (int(value) for value in found.groups())
        self._add(line, place, Exit(place, "agent", code, local_rank=local_rank, pid=pid))
        return True

    def _signals(self, line: Line, place: Place) -> bool:
        text, agent_pid = line.text, line.agent_pid
        sent = list(_SENT.finditer(text))
        for one in sent:
            number = SIGNAL_NUMBERS.get(one[3], 0) if one[3] else 2  # Windows has only Ctrl-C to send
            self._signal(AgentSignal(place, "sent", number, int(one[1] or one[2]), agent_pid))
        if sent:
            return True
        if found := _FORCED.search(text):
            self._signal(AgentSignal(place, "forced", 9, int(found[1]), agent_pid))
        elif found := _RECEIVED.search(text):
            number = int(found[1]) if found[1].isdigit() else SIGNAL_NUMBERS.get(found[1], 0)
            self._signal(AgentSignal(place, "received", number, None, agent_pid))
        elif found := _GOT.search(text):
            self._signal(AgentSignal(place, "received", int(found[2]), None, int(found[1])))
        else:
            return False
        return True

    def _deepspeed(self, line: Line, place: Place) -> bool:
        found = _DEEPSPEED.search(line.text)
        if found is None:
            return False
        local_rank = _LOCAL_RANK.search(line.text)
        place = place_at(place, line, found)
        one = Exit(place, "launcher", int(found[2]), local_rank=int(local_rank[1]) if local_rank else None)
        self._add(line, place, one)
        return True

    def _killing(self, line: Line, place: Place) -> bool:
        found = _KILLING.search(line.text)
        if found is None:
            return False
        if len(self._seen.killed_pids) < MAX_EXITS:
            self._seen.killed_pids.add(int(found[1]))
        return True

    def _called(self, line: Line, place: Place) -> bool:
        found = _CALLED.search(line.text)
        if found is None or not _PYTHON.search(found[1]):
            return False
        place = place_at(place, line, found)
        code = int(found[2]) if found[2] else -SIGNAL_NUMBERS.get(found[3], 0)
        local_rank = _LOCAL_RANK.search(found[1])
        self._add(line, place, Exit(place, "launcher", code, local_rank=int(local_rank[1]) if local_rank else None))
        self._seen.wrappers.append(place)
        return True

    def _spawn(self, line: Line, place: Place) -> bool:
        found = _SPAWN.search(line.text)
        if found is None:
            return False
        code = -SIGNAL_NUMBERS.get(found[2], 0) if found[2] else int(found[3] or found[5])
        one = Exit(place, "agent", code, local_rank=int(found[1] or found[4]))
        one.is_chosen = found[3] is not None
        self._add(line, place, one)
        return True

    def _shell(self, line: Line, place: Place) -> bool:
        if found := _MPIRUN.search(line.text):
            self._add(line, place, Exit(place, "agent", -int(found[2]), rank=int(found[1])))
        elif found := _SHELL.search(line.text):
            self._add(line, place, Exit(place, "launcher", _SLURM_WORDS[found[2]], pid=int(found[1])))
        elif (found := _EVENT.search(line.text)) and any(one.source == "agent" for one in self._seen.exits):
            self._add(line, place, Exit(place, "agent", 1, rank=int(found[1]), pid=int(found[2])))
        elif found := _CHILD.search(line.text):
            self._add(line, place, Exit(place, "agent", int(found[2]), rank=int(found[1])))
        elif found := _ENDED_RANK.search(line.text):
            pid = int(found[2]) if found[2] else None
            rank, code = int(found[1] or found[4]), int(found[3] or found[5])
            self._add(line, place, Exit(place, "agent", code, rank=rank, pid=pid))
        elif found := _BY_SIGNAL.search(line.text):
            self._add(line, place, Exit(place, "launcher", int(found[1], 0)))
        elif line.text.strip() == "Killed":
            self._add(line, place, Exit(place, "launcher", -9))
            return True
        return found is not None

    def _mpi(self, line: Line, place: Place) -> bool:
        if found := _MPI_ABORT.search(line.text):
            self._add(line, place, Exit(place, "agent", int(found[1]), rank=int(found[2])))
        elif found := _MPI_WHO.search(line.text):
            self._mpi_who = int(found[1] or found[2] or found[4] or found[5]), int(found[3]) if found[3] else None
        elif self._mpi_who is not None and (found := _MPI_HOW.search(line.text)):
            code, (rank, pid) = -int(found[2]) if found[2] else int(found[1] or found[3]), self._mpi_who
            self._add(line, place, Exit(place, "agent", code, rank=rank, pid=pid))
            if code in (-9, -15):  # so all are ended when one has failed
                self._add(line, place, Exit(place, "launcher", code))
                self._signal(AgentSignal(place, "forced", -code, pid, None))
            self._mpi_who = None
        elif found := _MPI_SIGNAL.search(line.text):
            self._add(line, place, Exit(place, "launcher", -int(found[1])))
        return found is not None

    def _scheduler(self, line: Line, place: Place) -> bool:
        found = _SRUN_EXIT.search(line.text)
        if found is None or (found[3] is None and found[4] not in _SLURM_WORDS):
            return False
        code = int(found[3]) if found[3] else _SLURM_WORDS[found[4]]
        for task in _listed(found[2]):
            if len(self._seen.exits) < MAX_EXITS:
                self._seen.exits.append(Exit(place, "scheduler", code, agent=(place.file, None, task, found[1])))
        return True

    def _wrapper(self, line: Line, place: Place) -> bool:
        if _RESTART.search(line.text):
            self._seen.restarts.append(place)
            return True
        if leftovers.tells_of_a_retry(line.text) and len(self._seen.retries) < MAX_EXITS:
            self._seen.retries.append(place)
        if _WRAPPER.search(line.text):
            self._seen.wrappers.append(place)
            return True
        if _LAUNCH.search(line.text) and self._has_ended(place.file):
            self._seen.restarts.append(place)
        return False

    def _has_ended(self, file: int) -> bool:
        """Whether a job in this file is over: what a launcher says of its start begins another attempt."""
        seen = self._seen
        ended = [*seen.wrappers, *(one.place for one in seen.signals)]
        ended += [one.place for one in seen.exits if one.source in ("agent", "table")]
        ended += [hit.place for hit in seen.hits if hit.is_record and hit.category == "preempted_or_cancelled"]
        return any(place.file == file for place in ended)

    def _world(self, line: Line, place: Place) -> bool:
        for found in _WORLD.finditer(line.text):
            self._seen.num_workers = max(self._seen.num_workers, min(int(found[1]), 1 << 20))
        if (hosts := _HOSTS.search(line.text)) and not any(_LOCAL.match(host) for host in hosts.groups()):
            self._seen.is_multinode = self._seen.is_multinode or hosts[1] != hosts[2]
        if listed := _GLOBAL.search(line.text):
            ranks = dict(enumerate(int(rank) for rank in listed[1].split(",")))
            known = self._seen.global_ranks.setdefault(place.file, ranks)
            self._seen.is_multinode = self._seen.is_multinode or ranks[0] != 0
            if known != ranks:
                known.clear()
        return listed is not None

    def _add(self, line: Line, place: Place, one: Exit) -> None:
        one.agent = (place.file, line.agent_pid, line.speaker.task, line.speaker.source)
        one.time = line.time
        if len(self._seen.exits) < MAX_EXITS:
            self._seen.exits.append(one)

    def _signal(self, one: AgentSignal) -> None:
        if len(self._seen.signals) < MAX_EXITS:
            self._seen.signals.append(one)


def _listed(tasks: str) -> Iterator[int]:
    """`4,6-7`: three numbers."""
    for part in tasks.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            yield from range(int(first), min(int(last or first), int(first) + MAX_EXITS) + 1)


MAX_EXITS: Final = 20_000
_PYTHON: Final = re.compile(r"python|\.py\b|torchrun|deepspeed")
_READERS: Final[tuple[Callable[[TorchrunLines, Line, Place], bool], ...]] = (
    TorchrunLines._failed,
    TorchrunLines._signals,
    TorchrunLines._deepspeed,
    TorchrunLines._killing,
    TorchrunLines._called,
    TorchrunLines._spawn,
    TorchrunLines._mpi,
    TorchrunLines._shell,
    TorchrunLines._scheduler,
    TorchrunLines._wrapper,
    TorchrunLines._world,
)
