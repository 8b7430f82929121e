"""The triage of any bytes: the same for any chunks, quotes that stand where they say, no certainty from noise."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from traceml_daemon.log_files.sign_files import load_book
from traceml_daemon.triage.blame import judge
from traceml_daemon.triage.observations import Observations
from traceml_daemon.triage.reader import LogReader, screened_words
from traceml_daemon.triage.screen import build_screen
from traceml_daemon.triage.verdict import Verdict

BOOK = load_book()
SCREEN = build_screen(screened_words(BOOK))
PIECES = (
    "Traceback (most recent call last):\n",
    '  File "/data/job/train.py", line 7, in main\n',
    "    main()\n",
    "RuntimeError: CUDA error: device-side assert triggered\n",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
    "[rank1]: ValueError: bad label\n",
    "[rank1]: Traceback (most recent call last):\n",
    "[rank0]: RuntimeError: Connection closed by peer [127.0.0.1]:411\n",
    "\x1b[31mKeyError\x1b[0m: 'x'\r\n",
    "10%|#  | 1/10\r20%|## | 2/10\rslurmstepd: error: *** STEP 1.0 ON a CANCELLED AT 2024-01-30T11:20:02 ***\n",
    "E0101 20:57:27.620000 21000 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) "
    "local_rank: 1 (pid: 21024) of binary: /opt/env/bin/python\n",
    "W0101 20:57:27.620000 21000 torch/distributed/elastic/multiprocessing/api.py:8] Sending process 3 closing signal "
    "SIGTERM\n",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n",
    "Root Cause (first observed failure):\n[0]:\n  time      : 2025-02-11_09:41:12\n  host      : node-a\n",
    "  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 21024) \n  error_file: <N/A>\n",
    '  traceback : Traceback (most recent call last):\n    File "a.py", line 1, in f\n  ValueError: 3\n  \n',
    "The above exception was the direct cause of the following exception:\n",
    "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00 (most recent call first):\n",
    "step 10 loss 0.5\n",
    "\x00\x00\xff\xfe\n",
    "\n",
    "rank 2: training failed\n",
    "[rank=3 pid=4711] step 1 loss 0.1\n",
    "n1:4711:12 [0] NCCL INFO comm 0x7f rank 3 nranks 4 - Init COMPLETE\n",
    "Killed process 4711 (python) total-vm:9kB\n",
)
some_log = st.lists(st.sampled_from(PIECES) | st.text(max_size=20), max_size=40).map(
    lambda pieces: "".join(pieces).encode("utf-8", "surrogatepass")
)


def read(chunks: Iterable[bytes], *, is_screened: bool = False) -> Verdict:
    seen = Observations()
    reader = LogReader(0, BOOK, seen, screen=SCREEN if is_screened else None)
    for chunk in chunks:
        reader.feed(chunk)
    reader.finish()
    return judge(seen)


@given(log=some_log, data=st.data())
@settings(max_examples=150, deadline=None)
def test_the_chunks_in_which_a_log_arrives_change_nothing(log: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=8)))
    chunks = [log[start:end] for start, end in zip([0, *cuts], [*cuts, len(log)], strict=True)]
    assert read(chunks) == read([log])
    assert read(log.splitlines(keepends=True)) == read([log])


@given(log=some_log)
@settings(max_examples=150, deadline=None)
def test_a_screened_log_gives_the_same_diagnosis(log: bytes) -> None:
    assert read([log], is_screened=True) == read([log])


@given(log=some_log)
@settings(max_examples=150, deadline=None)
def test_every_quote_stands_on_its_line(log: bytes) -> None:
    lines = log.split(b"\n")
    for place in read([log]).evidence:
        assert place.quote in lines[place.line - 1].decode("utf-8", "replace"), place


@given(log=st.binary(max_size=400) | st.text(max_size=400).map(lambda text: text.encode("utf-8", "surrogatepass")))
@settings(max_examples=150, deadline=None)
def test_noise_confirms_nothing(log: bytes) -> None:
    assert read([log]).confidence != "confirmed"


def test_a_line_without_an_end_is_read_in_pieces() -> None:
    log = b"x" * 200_000 + b" CUDA error: device-side assert triggered " + b"y" * 200_000
    verdict = read(log[start : start + 10_000] for start in range(0, len(log), 10_000))
    assert verdict.category == "cuda_device_assert"
    assert [place.line for place in verdict.evidence] == [1]
