"""What was seen in logs that bears on a failure: typed, with file and line. No judgement here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from traceml_daemon.triage.lines import Speaker
from traceml_daemon.triage.processes import ProcessRanks

_MAX_HOSTS: Final = 16
_MAX_HEARD: Final = 4096


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands: `order` grows within a file."""

    file: int
    """Index of the file among those given."""
    line: int
    quote: str


@dataclass(slots=True)
class Hit:
    """A sign of the catalogue that was found in a line."""

    category: str
    place: Place
    speaker: Speaker
    time: float | None
    is_stated: bool
    """The line states the cause; else it only suggests it."""
    priority: int
    rank: int | None
    """Named by the sign itself."""
    is_support: bool = False
    """Too weak to be a cause by itself: it only explains an exception, exit or signal."""
    is_record: bool = False
    """Written by the kernel, a scheduler or a device, not by the process that failed."""
    went_on_at: int = 0
    """The line up to which some steps were done after it; 0: none were seen."""


@dataclass(slots=True)
class Raised:
    """An exception, or a chain of them, as one traceback shows it."""

    place: Place
    """Of the message."""
    speaker: Speaker
    time: float | None
    type: str
    message: str
    frames: tuple[str, ...]
    """`path:line:function`, innermost last."""
    label_rank: int | None
    """Of a line such as `rank 3: training failed` right before."""
    has_header: bool
    is_ignored: bool = False
    """Printed by Python for an exception that it ignores."""
    is_in_thread: bool = False
    is_in_table: bool = False
    """Read from torchrun's table, which had it from the rank's error file; `label_rank` is certain then."""
    hits: list[Hit] = field(default_factory=list)
    went_on_at: int = 0
    """As of a hit."""
    attempt: int = 0
    earlier: Raised | None = None
    """The exception that this one was raised from, or while handling."""

    @property
    def short_type(self) -> str:
        return self.type.rpartition(".")[2]

    def chain(self) -> list[Raised]:
        """The oldest first."""
        members: list[Raised] = []
        one: Raised | None = self
        while one is not None and len(members) < 20:
            members.append(one)
            one = one.earlier
        return members[::-1]


ExitSource = Literal["agent", "table", "launcher", "scheduler"]


@dataclass(slots=True)
class Exit:
    """A worker's end, as somebody reported it."""

    place: Place
    source: ExitSource
    code: int
    """Negative: the signal."""
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    agent: tuple[int, int | None, int | None, str | None] = (0, None, None, None)
    """File, agent pid, srun task, host or pod: who reports."""
    time: float | None = None
    """As the table says it, in whole seconds."""
    is_root: bool = False
    message: str = ""
    """Of the table: what it shows as the cause."""
    message_place: Place | None = None
    message_rest: list[Place] = field(default_factory=list)
    """Further lines of it, and of the exceptions before it in a chain."""
    has_traceback: bool = False
    no_error_file: Place | None = None
    """Where the table says that the worker left none."""
    frames: list[str] = field(default_factory=list)
    is_chosen: bool = False
    """By the script: an exception would have been told with its traceback."""
    is_sole: bool = False
    """The table says that there are no other failures."""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class AgentSignal:
    """A signal that torchrun got, or sent to one of its workers."""

    place: Place
    direction: Literal["received", "sent", "forced"]
    number: int
    pid: int | None
    agent_pid: int | None
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Watchdog:
    """A collective that NCCL's watchdog gave up."""

    place: Place
    rank: int | None
    sequence: int
    operation: str
    numel: int | None
    group: str


@dataclass(frozen=True, slots=True)
class GoodEnd:
    """The tail of a log says that the job ended well."""

    place: Place
    is_sure: bool
    """An exit status of 0, or what a trainer says only at its end."""
    is_of_tests: bool
    """The summary of a test suite, whose tests print what is meant to fail."""
    last_progress: int
    """The line of the last step, epoch or bar before; 0: none in the tail."""


@dataclass(slots=True)
class Observations:
    """Of all files; bounded, whatever their size."""

    hits: list[Hit] = field(default_factory=list)
    raised: list[Raised] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    signals: list[AgentSignal] = field(default_factory=list)
    watchdogs: list[Watchdog] = field(default_factory=list)
    wrappers: list[Place] = field(default_factory=list)
    """`ChildFailedError` and what other launchers say instead: a worker failed, and nothing more."""
    restarts: list[Place] = field(default_factory=list)
    retries: list[Place] = field(default_factory=list)
    """A launcher other than torchrun lost a process and tries again."""
    first_returns: dict[int, int] = field(default_factory=dict)
    """By file, the first line with a carriage return inside: from there on, readers count lines differently."""
    progress: list[Place] = field(default_factory=list)
    """The last lines that look like progress, at most one a file."""
    good_ends: list[GoodEnd] = field(default_factory=list)
    """At most one a file."""
    suspects: list[Place] = field(default_factory=list)
    """Lines that speak of an error and fit nothing known."""
    killed_pids: set[int] = field(default_factory=set)
    """Workers that a launcher without torchelastic cleaned up: all that were left."""
    global_ranks: dict[int, dict[int, int]] = field(default_factory=dict)
    """By file and local rank, as the only agent of that file said it."""
    task_ranks: set[tuple[int, int]] = field(default_factory=set)
    """Task and rank of lines that name both."""
    processes: ProcessRanks = field(default_factory=ProcessRanks)
    num_workers: int = 0
    """As a launcher said; 0 where none did."""
    num_lines: int = 0
    is_multinode: bool = False
    """More than one agent spoke, or a launcher said that there are several nodes."""
    behind: dict[int, tuple[Place, list[int]]] = field(default_factory=dict)
    """By file, the last record of how far each rank is, and those that are behind."""
    lowest_rank: int | None = None
    """Of those whose lines say which rank wrote them."""
    heard: set[int] = field(default_factory=set)
    """Ranks with a line of their own that was worth a look."""
    hosts: set[str] = field(default_factory=set)
    """Before lines of ranks or of torchrun: with two of them, what counts ranks on one node does not name them."""
    num_processes: int = 0
    """Ranks and tasks that spoke or were named."""

    def note_rank(self, rank: int | None) -> None:
        """Who wrote a line."""
        if rank is not None:
            if len(self.heard) < _MAX_HEARD:
                self.heard.add(rank)
            self.lowest_rank = rank if self.lowest_rank is None else min(rank, self.lowest_rank)

    def note_host(self, speaker: Speaker, *, is_agents: bool) -> None:
        """On which host or in which pod a line was written; an actor is a single process."""
        is_jobs = is_agents or speaker.rank is not None
        if is_jobs and speaker.source is not None and "pid=" not in speaker.source and len(self.hosts) < _MAX_HOSTS:
            self.hosts.add(speaker.source)

    @property
    def tasks_are_ranks(self) -> bool:
        """Whether each task of a step is the rank of its number: shown by more than rank 0, and denied by none."""
        return bool(self.task_ranks - {(0, 0)}) and all(task == rank for task, rank in self.task_ranks)
