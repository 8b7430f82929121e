"""Variables of torchrun and ours, parsed once."""

from __future__ import annotations

import pytest

from traceml_client.protocol import environ
from traceml_client.protocol.environ import DEFAULT_AGGREGATOR_PORT, RankEnvironment
from traceml_client.protocol.errors import ConfigError

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_ERROR_FILE": "/tmp/error.json",
}


def test_outside_torchrun_a_process_is_rank_0_of_1() -> None:
    parsed = RankEnvironment.parse({})

    assert (parsed.rank, parsed.local_rank, parsed.world_size, parsed.local_world_size) == (0, 0, 1, 1)
    assert (parsed.group_rank, parsed.torch_restart_count, parsed.error_file) == (0, 0, None)
    assert (parsed.aggregator_host, parsed.aggregator_port) == ("127.0.0.1", DEFAULT_AGGREGATOR_PORT)
    assert (parsed.token, parsed.run_name, parsed.handover_path, parsed.trace_max_steps) == ("", "", None, None)


def test_what_torchrun_says() -> None:
    parsed = RankEnvironment.parse(TORCHRUN)

    assert (parsed.rank, parsed.local_rank, parsed.world_size, parsed.local_world_size) == (5, 1, 8, 4)
    assert (parsed.group_rank, parsed.torch_restart_count, parsed.error_file) == (1, 2, "/tmp/error.json")


def test_the_node_follows_from_the_rank_where_nobody_says_it() -> None:
    without = {name: value for name, value in TORCHRUN.items() if name != "GROUP_RANK"}

    assert RankEnvironment.parse(without).group_rank == 1


def test_what_we_say() -> None:
    parsed = RankEnvironment.parse(
        {
            environ.AGGREGATOR_HOST: "10.0.0.1",
            environ.AGGREGATOR_PORT: "4000",
            environ.TOKEN: "secret",
            environ.RUN_NAME: "mine",
            environ.HANDOVER: "/run/h",
            environ.TRACE_MAX_STEPS: "100",
        }
    )

    assert (parsed.aggregator_host, parsed.aggregator_port) == ("10.0.0.1", 4000)
    assert (parsed.token, parsed.run_name, parsed.handover_path, parsed.trace_max_steps) == (
        "secret",
        "mine",
        "/run/h",
        100,
    )


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", environ.AGGREGATOR_PORT, environ.TRACE_MAX_STEPS])
def test_a_number_that_is_none_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}='many' is not a whole number$"):
        RankEnvironment.parse({name: "many"})


@pytest.mark.parametrize(
    ("option", "variable"),
    [("--logs-dir", "TRACEML_LOGS_DIR"), ("--finalize-timeout-sec", "TRACEML_FINALIZE_TIMEOUT_SEC")],
)
def test_every_option_has_a_variable(option: str, variable: str) -> None:
    assert environ.option_variable(option) == variable


def test_the_token_is_taken_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environ.TOKEN, "secret")

    environ.forget_token()
    environ.forget_token()

    assert environ.TOKEN not in environ.snapshot()
