"""How the tail of a log reads: did it go on, and does it say that the job ended well?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from traceml_daemon.triage.lines import attribute
from traceml_daemon.triage.observations import GoodEnd, Place

_MAX_QUOTE: Final = 400
_SUSPECT: Final = re.compile(
    r"(?i)error(?!s?[_ ]?rate|[_/ ]?(?:bars?|margin))(?<!/error)|fail"
    r"|fatal|killed|abort|exception|not found|denied|refused|traceback|non-?zero|user defined signal"
)
_ASIDE: Final = re.compile(r"(?:wandb|mlflow|comet|tensorboard)\b|\[?W\d{3,4} |.*\bcouldn't chdir to ")
"""Those that only watch a job, warnings, and what Slurm goes on after."""
_PROGRESS: Final = re.compile(
    r"(?i)\b(?:step|epoch|iter(?:ation)?|batch|loss|train(?:ing)?)\b(?!-).*\d|\d+/\d+ \[|\b(?:finished|completed?)\b"
    r"|\b(?:saved|done)\b"
)
STEP: Final = re.compile(r"(?i)\b(?:steps?|epochs?|iter(?:ation)?s?|batch|loss)\b.{0,40}\d|\d+/\d+ \[|\b\d+%\|")
_SURE: Final = re.compile(
    r"(?i)\bexit(?:ed|s|ing)?(?: with)?[ _]?(?:code|status)?[\"']?\s*[:= ]\s*0(?![\dx.])|\breturned 0$"
    r"|\bexits successfully|\bcode=exited, status=0"
    r"|\bworker group successfully finished|worker group finished \((?:\w+\.)?SUCCEEDED\)"
    r"|\bfinished,? (?:with )?(?:exit )?(?:status|code) 0\b|^\[\d+\][-+]?\s+Done\s"
    r"|['\"]train_runtime['\"]:|\bmax_(?:epochs|steps|time)=\S+ reached"
)
_TESTS: Final = re.compile(r"(?<!\d)\d+ passed\b.{0,80} in \d+(?:\.\d+)? ?s\b")
_TESTS_FAILED: Final = re.compile(r"(?<!\d)\d+ (?:failed|errors?)\b")
_BAD_STATE: Final = re.compile(r"\b(?:CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_ME\w*|PREEMPTED|DEADLINE)\b.*\d+:\d+")
"""Of Slurm's accounts."""
_SUCCESS: Final = re.compile(
    r"(?i)^[\s|]*\d+(?:_\d+)?[\s|].*\bCOMPLETED[\s|]+0:0\b|^COMPLETED[\s|]+\d+[\s|]+0:0\b|\bJobState=COMPLETED\b|\b(?:training|fine-?tuning|pre-?training|evaluation|run|job|experiment"
    r"|all (?:ranks|epochs|steps|tasks|workers|trials|runs|jobs))\b.{0,40}"
    r"\b(?:completed?|finished|done|succeeded|successful(?:ly)?|ended (?:well|normally))\b"
    r"|^\W*(?:done|finished|completed|success)\b|\bSUCCEEDED\b"
    r"|\b(?:finished|completed) (?:training|successfully|all)"
)
_BAD: Final = re.compile(r"(?i)\b(?:not|never|un\w+|with errors?|before|failed|failure|fatal|abort\w*|killed)\b")
_COUNT_0: Final = re.compile(r"(?i)\b(?:errors?|failures?|failed)\s*[:=]\s*0\b|\b(?:0|no) (?:errors|failures|failed)\b")


def is_suspect(text: str) -> bool:
    """Whether a line speaks of a failure, in whatever words."""
    return _SUSPECT.search(text) is not None and not _ASIDE.match(text)


def last_progress(file: int, number: int, tail: bytes) -> Iterator[Place]:
    """The last line that looks like work, if there is one; `number`: of the last line."""
    for line, text in _lines(number, tail):
        if _PROGRESS.search(text) and not is_suspect(text):
            yield Place(file, line, text[:_MAX_QUOTE])
            return


def good_end(file: int, number: int, tail: bytes) -> Iterator[GoodEnd]:
    """The last line that says so, if nothing below it speaks of an error."""
    found: GoodEnd | None = None
    for line, text in _lines(number, tail):
        if found is not None:
            if STEP.search(text):
                yield replace(found, last_progress=line)
                return
            continue
        plain = _COUNT_0.sub("", text)
        is_sure = _SURE.search(plain) is not None
        is_of_tests = _TESTS.search(text) is not None and not _TESTS_FAILED.search(text)
        if is_sure or is_of_tests or (_is_success(plain) and not _BAD.search(plain) and not is_suspect(plain)):
            found = GoodEnd(Place(file, line, text[:_MAX_QUOTE]), is_sure or is_of_tests, is_of_tests, 0)
        elif is_suspect(plain) or _BAD_STATE.search(plain):
            return
    if found is not None:
        yield found


def _is_success(text: str) -> bool:
    """With or without what was put before the line; torchrun is also `Done waiting` after a failure."""
    line = attribute(0, text.encode())
    return any(_SUCCESS.search(one) for one in ((text,) if line.is_agents else (text, line.text)))


def _lines(number: int, tail: bytes) -> Iterator[tuple[int, str]]:
    """The last first; of a line that a progress bar wrote over, what it wrote last."""
    for offset, piece in enumerate(reversed(tail.split(b"\n"))):
        text = piece.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2].strip()
        if text:
            yield number - offset, text
