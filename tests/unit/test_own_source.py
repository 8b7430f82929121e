"""The user's own line and the wrapped exception, read from tracebacks as Python prints them."""

from __future__ import annotations

import traceback
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from traceml_client.crash import describe
from traceml_daemon.triage.own_source import Source, innermost, source_in, wrapped

SCRIPT = "/data/job/train.py"
LOAD = "def load(path):\n    return {'input_ids': 1}[path]\n"
IN_WORKER = (
    "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
    '  File "/data/job/data.py", line 31, in __getitem__\n    return self.labels[i]\nValueError: 7\n'
)

CASES = {
    "its own": (LOAD + "load('labels')", 2, None),
    "from inside a library": ("import json\njson.loads('{')", 2, None),
    "raised from": (
        LOAD + "try:\n    load('labels')\nexcept KeyError as error:\n    raise ValueError('bad batch') from error",
        2,
        "KeyError: 'labels'",
    ),
    "raised from one that was never raised": ("raise ValueError('bad') from OSError('gone')", 1, "OSError: gone"),
    "raised while another was handled": (
        LOAD + "try:\n    load('labels')\nexcept KeyError:\n    raise ValueError('bad batch')",
        6,
        None,
    ),
    "raised from nothing": (
        LOAD + "try:\n    load('labels')\nexcept KeyError:\n    raise ValueError('bad batch') from None",
        6,
        None,
    ),
    "a group": (
        LOAD + "try:\n    load('labels')\nexcept KeyError as error:\n    raise ExceptionGroup('2 failed', [error])",
        2,
        "KeyError: 'labels'",
    ),
    "several lines": ("raise ValueError('3 errors:\\n  - a: missing\\n  - KeyError: b')", 1, None),
    "a worker process of a DataLoader": (
        f"raise ValueError({IN_WORKER!r})",
        ("/data/job/data.py", 31),
        "ValueError: 7",
    ),
    "a syntax error": ("exec(compile('x =', '/data/job/model.py', 'exec'))", ("/data/job/model.py", 1), None),
}


@pytest.mark.parametrize(("code", "line", "first"), CASES.values(), ids=CASES.keys())
def test_own_line_and_what_was_wrapped(code: str, line: int | tuple[str, int], first: str | None) -> None:
    with pytest.raises(Exception) as caught:
        exec(compile(code, SCRIPT, "exec"), {})
    text = describe(caught.value, kind="main", raised_ns=0, step=0, phase=None).traceback

    source = source_in(text)
    assert source is not None
    assert (source.file, source.line) == (line if isinstance(line, tuple) else (SCRIPT, line))
    assert wrapped(text) == first


def test_what_another_process_raised() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        error = pool.submit(int, "seven").exception()
    assert error is not None
    text = "".join(traceback.format_exception(error))
    assert wrapped(text) == "ValueError: invalid literal for int() with base 10: 'seven'"


def test_a_line_of_our_own_or_of_a_package_is_not_the_users() -> None:
    frames = (
        f"{SCRIPT}:3:main",
        "/opt/env/lib/python3.12/site-packages/torch/nn/modules/module.py:1773:_wrapped_call_impl",
        "/home/me/traceml/traceml_client/torch_hooks/forward.py:90:call",
        "<frozen runpy>:88:_run_code",
    )
    assert innermost(frames) == Source(SCRIPT, 3, "main")
    assert innermost(frames[1:]) is None
    assert str(innermost(frames)) == f'File "{SCRIPT}", line 3, in main'
