"""The launcher on machines that are not as one would wish: few descriptors, odd names, hosts that have no address."""

from __future__ import annotations

from pathlib import Path

from tests.harness.torchrun import RunFolder, start
from tests.launch.launcher import REPOSITORY, launch, launcher_argv, run_folder, workers

SAYS = "import resource; print('descriptors', resource.getrlimit(resource.RLIMIT_NOFILE)); print(rank)"


def test_64_descriptors_are_enough_for_a_few_ranks(tmp_path: Path) -> None:
    argv = ["prlimit", "--nofile=64", *launcher_argv(tmp_path, *workers(2, SAYS))]
    with start(argv, cwd=tmp_path, environ={"PYTHONPATH": str(REPOSITORY)}) as command:
        finished = command.finish(within_s=30)
    assert finished.exit_code == 0, finished.stderr.decode()
    assert finished.stdout.count(b"descriptors (64, 64)") == 2
    assert run_folder(tmp_path).rank_stream(1, "stdout").endswith(b"1\n")
    assert run_folder(tmp_path).manifest()["status"] == "completed"


def test_folders_and_names_may_have_blanks_and_letters_of_any_script(tmp_path: Path) -> None:
    logs_dir, name = (
        tmp_path / "mes journaux  \xe9t\xe9" / "\u65e5\u5fd7",
        "\xe9preuve n\xb0 7, \u0432\u0435\u0442\u0435\u0440",
    )
    with launch(
        tmp_path, *workers(1, "print('\u0432\u0435\u0442\u0435\u0440')"), logs_dir=str(logs_dir), run_name=name
    ) as command:
        finished = command.finish(within_s=30)
    assert finished.exit_code == 0, finished.stderr.decode()
    folder = RunFolder(logs_dir / name)
    assert folder.rank_stream(0, "stdout") == "\u0432\u0435\u0442\u0435\u0440\n".encode()
    assert (folder.manifest()["run_name"], folder.manifest()["status"]) == (name, "completed")
    assert str(logs_dir / name).encode() in finished.stderr


def test_an_aggregator_host_without_an_address_costs_telemetry_only(tmp_path: Path) -> None:
    options = {"attach": True, "aggregator_host": "no-such-host.invalid"}
    with launch(tmp_path, *workers(1, "print('trained')"), **options) as command:
        finished = command.finish(within_s=60)
    assert (finished.exit_code, finished.stdout.splitlines()[-1]) == (0, b"trained")
    assert b"Telemetry: unavailable (aggregator_unreachable)" in finished.stderr


def test_an_address_that_is_no_address_costs_telemetry_only(tmp_path: Path) -> None:
    with launch(tmp_path, *workers(1, "print('trained')"), bind_host="no-such-host.invalid") as command:
        finished = command.finish(within_s=60)
    assert (finished.exit_code, finished.stdout.splitlines()[-1]) == (0, b"trained")
    assert b"cannot listen on no-such-host.invalid" in finished.stderr
    assert run_folder(tmp_path).manifest()["telemetry_status"] == "unavailable"


def test_telemetry_over_ipv6(tmp_path: Path) -> None:
    with launch(tmp_path, *workers(1, "print('trained')"), bind_host="::", aggregator_host="::1") as command:
        finished = command.finish(within_s=60)
    assert finished.exit_code == 0, finished.stderr.decode()
    assert b"cannot listen" not in finished.stderr
    assert run_folder(tmp_path).manifest()["telemetry"]["authenticated"] is True
