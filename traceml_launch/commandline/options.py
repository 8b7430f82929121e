"""Every option of `traceml run` as data: what is parsed, what `--help` and README say, what a later version brings.

The order is the order of the help. Options of torchrun that are passed through untouched are in `torchrun_options`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from traceml_client.protocol.environ import option_variable

Kind = Literal["flag", "text", "path", "port", "count", "seconds", "nproc", "nnodes", "run_name", "choice"]

DEVICE_WORDS = ("auto", "cpu", "gpu", "xpu", "npu", "hpu", "mlu", "musa")
"""What `--nproc-per-node` may say beside a number: torchrun's words, and backends that register themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    name: str
    kind: Kind
    meaning: str
    default: str = ""
    """In words, for the help."""
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    minimum: float = 0
    """Of a count or of seconds."""
    is_extra: bool = False
    """Marked (+) in the contract: behind SCRIPT it belongs to the script."""
    is_later: bool = False
    """Not in this version, but for the values in `accepted`."""
    accepted: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name in traceml.toml, and of the parsed value."""
        return self.name.removeprefix("--")

    @property
    def variable(self) -> str:
        return option_variable(self.name)

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


OPTIONS: tuple[Option, ...] = (
    Option(
        name="--nproc-per-node",
        kind="nproc",
        default="1",
        meaning="workers on this node: a number, gpu, cpu or auto, as in torchrun",
    ),
    Option(name="--nnodes", kind="nnodes", default="1", meaning="nodes; MIN:MAX with a rendezvous backend"),
    Option(name="--node-rank", kind="count", default="0", meaning="which of the nodes this is, from 0"),
    Option(name="--master-addr", kind="text", default="127.0.0.1", meaning="address of node 0 (static rendezvous)"),
    Option(
        name="--master-port",
        kind="port",
        default="29500 with several nodes, else a free port",
        meaning="port of the static rendezvous",
    ),
    Option(
        name="--run-name",
        kind="run_name",
        default="time and a random id; with several nodes --rdzv-id or the job's id",
        aliases=("--session-id",),
        meaning="identity of the run, the same on all nodes; also the name of its folder",
    ),
    Option(name="--logs-dir", kind="path", default="logs", meaning="where run folders live"),
    Option(
        name="--mode",
        kind="choice",
        default="summary",
        choices=("summary", "cli", "dashboard"),
        accepted=("summary",),
        is_later=True,
        meaning="summary: training output live and a report at the end",
    ),
    Option(
        name="--aggregator-host",
        kind="text",
        default="--master-addr, else the host of --rdzv-endpoint",
        meaning="where ranks and launchers send telemetry",
    ),
    Option(
        name="--aggregator-port",
        kind="port",
        default="29765; on one node any free port if that is taken",
        meaning="port of the aggregator",
    ),
    Option(
        name="--aggregator-bind-host",
        kind="text",
        default="127.0.0.1; on the owner of several nodes 0.0.0.0",
        meaning="address that the aggregator listens on",
    ),
    Option(
        name="--attach",
        kind="flag",
        is_extra=True,
        default="off",
        meaning="use a daemon that runs already (traceml serve) at --aggregator-host and --aggregator-port",
    ),
    Option(
        name="--finalize-timeout-sec",
        kind="seconds",
        default="300",
        meaning="the whole time from the end of training to the written summary; never ends training",
    ),
    Option(
        name="--settle-sec",
        kind="seconds",
        is_extra=True,
        default="1",
        meaning="quiet time after the last telemetry before the run is sealed; skipped when all of it is in",
    ),
    Option(
        name="--grace-sec",
        kind="seconds",
        minimum=1,
        is_extra=True,
        default="none",
        meaning="a known deadline from the first SIGTERM (Kubernetes, Slurm); all shutdown times are fitted into it",
    ),
    Option(
        name="--html-report",
        kind="flag",
        default="off",
        meaning="also write final_summary.html; of any run later: traceml view RUN --html",
    ),
    Option(
        name="--no-save-training-output",
        kind="flag",
        default="off",
        meaning="training inherits the terminal, its output is not saved",
    ),
    Option(
        name="--max-log-bytes",
        kind="count",
        is_extra=True,
        default="0, no cap",
        meaning="cap of each saved stream: beyond it its head and a rolling tail are kept",
    ),
    Option(name="--no-history", kind="flag", default="off", meaning="no telemetry database, so no final summary"),
    Option(
        name="--trace-max-steps",
        kind="count",
        default="none",
        meaning="stop recording after this many steps; training goes on",
    ),
    Option(
        name="--disable-traceml",
        kind="flag",
        default="off",
        meaning="plain torchrun with the same supervision and exit code, for baselines",
    ),
    Option(
        name="--on-missing-aggregator",
        kind="choice",
        default="warn",
        choices=("warn", "raise"),
        meaning="warn: train without telemetry; raise: refuse to start",
    ),
    Option(
        name="--stall-timeout-sec",
        kind="seconds",
        is_extra=True,
        is_later=True,
        accepted=("300",),
        meaning="report a hang",
    ),
    Option(
        name="--linger-sec",
        kind="seconds",
        is_extra=True,
        default="30",
        meaning="how long processes that a rank detached on purpose may finish after the end",
    ),
    Option(
        name="--token-file",
        kind="path",
        is_extra=True,
        default="none",
        meaning="file with the shared secret of a run on several nodes; the secret itself can be in TRACEML_TOKEN",
    ),
    Option(
        name="--overwrite", kind="flag", is_extra=True, default="off", meaning="replace a finished run of that name"
    ),
    Option(name="--quiet", kind="flag", is_extra=True, default="off", meaning="none of our own lines except errors"),
    Option(
        name="--tls-cert",
        kind="path",
        is_extra=True,
        default="none",
        meaning="encrypt telemetry: the aggregator's certificate, on every node where --tls-ca is not given",
    ),
    Option(name="--tls-key", kind="path", is_extra=True, default="none", meaning="its key, on the owner's node"),
    Option(
        name="--tls-ca",
        kind="path",
        is_extra=True,
        default="none",
        meaning="authorities that the certificate is checked with; it must then be for --aggregator-host",
    ),
    Option(name="--on-stall", kind="text", is_extra=True, is_later=True, meaning="what to do about a hang"),
    Option(name="--notify-url", kind="text", is_extra=True, is_later=True, meaning="tell a server of the end"),
    Option(name="--notify-cmd", kind="text", is_extra=True, is_later=True, meaning="run a command at the end"),
    Option(name="--dashboard-port", kind="port", is_extra=True, is_later=True, meaning="port of the live page"),
)

BY_SPELLING: dict[str, Option] = {spelling: option for option in OPTIONS for spelling in option.spellings}
BY_KEY: dict[str, Option] = {option.key: option for option in OPTIONS}


def documented() -> list[Option]:
    """The options that this version has, for the help and for README."""
    return [option for option in OPTIONS if not option.is_later or (option.accepted and option.choices)]


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the nearest of the known words, else nothing."""
    import difflib  # only those who mistype pay for it

    nearest = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {nearest[0]}?" if nearest else ""
