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


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    kind: Kind
    default: str
    """In words, for the help."""
    meaning: str
    fills: str = ""
    """The field of `LaunchConfig` that is this option's alone; a flag turns that field's default round."""
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
    Option("--nproc-per-node", "nproc", "1", fills="nproc_per_node",
           meaning="workers on this node: a number, gpu, cpu or auto, as in torchrun"),
    Option("--nnodes", "nnodes", "1", meaning="nodes; MIN:MAX with a rendezvous backend"),
    Option("--node-rank", "count", "0", meaning="which of the nodes this is, from 0"),
    Option("--master-addr", "text", "127.0.0.1", fills="master_addr", meaning="address of node 0 (static rendezvous)"),
    Option("--master-port", "port", "29500 with several nodes, else a free port",
           meaning="port of the static rendezvous"),
    Option("--run-name", "run_name", "time and a random id; with several nodes --rdzv-id or the job's id",
           aliases=("--session-id",),
           meaning="identity of the run, the same on all nodes; also the name of its folder"),
    Option("--logs-dir", "path", "logs", fills="logs_dir", meaning="where run folders live"),
    Option("--mode", "choice", "summary", choices=("summary", "cli", "dashboard"), accepted=("summary",), is_later=True,
           meaning="summary: training output live and a report at the end"),
    Option("--aggregator-host", "text", "--master-addr, else the host of --rdzv-endpoint",
           meaning="where ranks and launchers send telemetry"),
    Option("--aggregator-port", "port", "29765; on one node any free port if that is taken", fills="aggregator_port",
           meaning="port of the aggregator"),
    Option("--aggregator-bind-host", "text", "127.0.0.1; on the owner of several nodes 0.0.0.0",
           meaning="address that the aggregator listens on"),
    Option("--attach", "flag", "off", fills="attach", is_extra=True,
           meaning="use a daemon that runs already (traceml serve) at --aggregator-host and --aggregator-port"),
    Option("--finalize-timeout-sec", "seconds", "300", fills="finalize_timeout_s",
           meaning="the whole time from the end of training to the written summary; never ends training"),
    Option("--settle-sec", "seconds", "1", fills="settle_s", is_extra=True,
           meaning="quiet time after the last telemetry before the run is sealed; skipped when all of it is in"),
    Option("--grace-sec", "seconds", "none", fills="grace_s", minimum=1, is_extra=True,
           meaning="known deadline from the first SIGTERM (Kubernetes, Slurm); all shutdown times are fitted into it"),
    Option("--html-report", "flag", "off", fills="has_html",
           meaning="also write final_summary.html; of any run later: traceml view RUN --html"),
    Option("--no-save-training-output", "flag", "off", fills="is_output_saved",
           meaning="training inherits the terminal, its output is not saved"),
    Option("--max-log-bytes", "count", "0, no cap", fills="max_log_bytes", is_extra=True,
           meaning="cap of each saved stream: beyond it its head and a rolling tail are kept"),
    Option("--no-history", "flag", "off", fills="has_history", meaning="no telemetry database, so no final summary"),
    Option("--trace-max-steps", "count", "none", fills="trace_max_steps",
           meaning="stop recording after this many steps; training goes on"),
    Option("--disable-traceml", "flag", "off", fills="is_disabled",
           meaning="plain torchrun with the same supervision and exit code, for baselines"),
    Option("--on-missing-aggregator", "choice", "warn", fills="on_missing_aggregator", choices=("warn", "raise"),
           meaning="warn: train without telemetry; raise: refuse to start"),
    Option("--stall-timeout-sec", "seconds", "", accepted=("300",), is_extra=True, is_later=True,
           meaning="report a hang"),
    Option("--linger-sec", "seconds", "30", fills="linger_s", is_extra=True,
           meaning="how long processes that a rank detached on purpose may finish after the end"),
    Option("--token-file", "path", "none", is_extra=True,
           meaning="file with the shared secret of a run on several nodes; the secret itself can be in TRACEML_TOKEN"),
    Option("--overwrite", "flag", "off", fills="overwrite", is_extra=True,
           meaning="replace a finished run of that name"),
    Option("--quiet", "flag", "off", fills="is_quiet", is_extra=True, meaning="none of our own lines except errors"),
    Option("--tls-cert", "path", "none", fills="tls_cert", is_extra=True,
           meaning="encrypt telemetry: the aggregator's certificate, on every node where --tls-ca is not given"),
    Option("--tls-key", "path", "none", fills="tls_key", is_extra=True, meaning="its key, on the owner's node"),
    Option("--tls-ca", "path", "none", fills="tls_ca", is_extra=True,
           meaning="authorities that the certificate is checked with; it must then be for --aggregator-host"),
    Option("--on-stall", "text", "", is_extra=True, is_later=True, meaning="what to do about a hang"),
    Option("--notify-url", "text", "", is_extra=True, is_later=True, meaning="tell a server of the end"),
    Option("--notify-cmd", "text", "", is_extra=True, is_later=True, meaning="run a command at the end"),
    Option("--dashboard-port", "port", "", is_extra=True, is_later=True, meaning="port of the live page"),
)  # fmt: skip

BY_SPELLING: dict[str, Option] = {spelling: option for option in OPTIONS for spelling in option.spellings}
BY_KEY: dict[str, Option] = {option.key: option for option in OPTIONS}


def documented() -> list[Option]:
    """The options that this version has, for the help and for README."""
    return [option for option in OPTIONS if not option.is_later or (option.accepted and option.choices)]


def suggestion(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the nearest of the known words, else nothing."""
    import difflib  # only those who mistype pay for it

    by_letters = {each.lstrip("-"): each for each in known}
    nearest = difflib.get_close_matches(word.lstrip("-"), by_letters, n=1, cutoff=0.6)
    return f"; did you mean {by_letters[nearest[0]]}?" if nearest else ""
