"""Small programs whose every visible effect must be the same under the worker as under plain Python.

`{python -u ARGUMENTS}` against `{python -u -m traceml_client.worker ARGUMENTS}`, in one folder with the case's files.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    script: str = ""
    """Content of main.py."""
    arguments: tuple[str, ...] = ("main.py",)
    files: dict[str, str] = field(default_factory=dict)
    """More files, by path."""
    options: tuple[str, ...] = ()
    """For the interpreter."""
    text_in: bytes = b""
    is_told_of_threads: bool = False
    """It forks by hand: from 3.12 on Python warns of that where there is a second thread, and the sender is one."""


ABOUT_MAIN = """
import sys
hidden = ("__builtins__", "__loader__", "__spec__", "sys")
print({name: value for name, value in globals().items() if name not in hidden})
print(__spec__ and (__spec__.name, __spec__.origin, __spec__.parent, __spec__.cached, __spec__.loader is __loader__))
print(type(__builtins__), type(__loader__), __loader__.name, __loader__.path)
print(sys.argv, sys.orig_argv, sys.path[:1], sys.modules["__main__"].__dict__ is globals())
"""

CHILDREN = """
import multiprocessing, os, pickle, sys

class Point:
    def __init__(self, x): self.x = x

def double(point):
    print("child", point.x, flush=True)
    return Point(2 * point.x)

if __name__ == "__main__":
    print(type(pickle.loads(pickle.dumps(Point(1)))))
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        print([p.x for p in pool.map(double, [Point(1), Point(2)])])
"""

ANEW = """
import os, sys
if "ANEW" not in os.environ:
    print("before", flush=True)
    os.environ["ANEW"] = "1"
    command = [sys.executable, "-X", "utf8", "-u"]
    {}
print("anew", sys.argv, sys.orig_argv, sys.flags, __name__, __spec__ and __spec__.name, sys.path[:1])
sys.exit(3)
"""

CASES = [
    Case("main_of_a_script", ABOUT_MAIN, ("main.py", "a", "-m", "--x")),
    Case("main_of_a_script_with_a_dot", ABOUT_MAIN, ("./main.py",)),
    Case("main_of_a_module", files={"tool.py": ABOUT_MAIN}, arguments=("-m", "tool", "-m", "y")),
    Case(
        "main_of_a_package",
        files={"pkg/__init__.py": "import sys; print(sys.argv)", "pkg/__main__.py": ABOUT_MAIN},
        arguments=("-m", "pkg", "z"),
    ),
    Case("main_of_a_folder", files={"app/__main__.py": ABOUT_MAIN}, arguments=("app", "z")),
    Case("script_in_a_folder", files={"deep/main.py": ABOUT_MAIN}, arguments=("deep/main.py",)),
    Case("safe_path", ABOUT_MAIN, options=("-P",)),
    Case("safe_path_module", files={"tool.py": ABOUT_MAIN}, arguments=("-m", "tool"), options=("-P",)),
    Case("missing_script", arguments=("nowhere.py",)),
    Case("missing_module", arguments=("-m", "nowhere")),
    Case("missing_main_in_folder", files={"app/x.py": ""}, arguments=("app",)),
    Case("module_with_a_bad_parent", files={"pkg/__init__.py": "1/0"}, arguments=("-m", "pkg.tool")),
    Case("syntax_error", "print('never')\ndef f(:\n"),
    Case("syntax_error_in_an_import", "import bad", files={"bad.py": "a b"}),
    Case("syntax_error_in_a_module", files={"tool.py": "a b"}, arguments=("-m", "tool")),
    Case("no_future_of_ours", "def f(x: int) -> str: ...\nprint(f.__annotations__)"),
    Case("source_encoding", "# -*- coding: latin-1 -*-\nprint(ascii('\\xe4'), ascii('\u00e4'))"),
    Case(
        "chained_errors",
        "def f():\n    {}['a']\ntry:\n    f()\nexcept KeyError as e:\n    raise ValueError('b\\nc') from e",
    ),
    Case("error_while_handling", "try:\n    1 / 0\nexcept ZeroDivisionError:\n    undefined"),
    Case("error_in_a_module", files={"tool.py": "def f():\n    1 / 0\nf()"}, arguments=("-m", "tool")),
    Case("error_group", "raise ExceptionGroup('all', [ValueError(1), TypeError(2)])"),
    Case("error_without_text", "class E(Exception):\n    def __str__(self): raise TypeError\nraise E"),
    Case("base_exception", "raise GeneratorExit('odd')"),
    Case("exit_none", "import sys; sys.exit()"),
    Case("exit_3", "import sys; sys.exit(3)"),
    Case("exit_message", "import sys; sys.exit('no such corpus')"),
    Case("exit_object", "import sys; sys.exit([1, 2])"),
    Case("exit_true", "raise SystemExit(True)"),
    Case("exit_minus_1", "raise SystemExit(-1)"),
    Case("exit_256", "raise SystemExit(256)"),
    Case("exit_huge", "raise SystemExit((1 << 40) + 3)"),
    Case("exit_of_a_module", files={"tool.py": "raise SystemExit(4)"}, arguments=("-m", "tool")),
    Case("exit_after_a_caught_error", "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise SystemExit(5)"),
    Case("exit_at_once", "import os; print('kept', end=''); os._exit(7)"),
    Case("killed", "import os; print('last words'); os.kill(os.getpid(), 9)"),
    Case("terminated", "import os; os.kill(os.getpid(), 15)"),
    Case("interrupted", "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"),
    Case("interrupt_raised", "import atexit; atexit.register(print, 'bye')\nraise KeyboardInterrupt('x')"),
    Case("interrupt_subclass", "class Stop(KeyboardInterrupt): pass\nraise Stop"),
    Case("interrupt_of_a_module", files={"tool.py": "raise KeyboardInterrupt"}, arguments=("-m", "tool")),
    Case(
        "own_hook",
        "import sys, traceback\n"
        "def hook(t, e, tb):\n"
        "    print(t, e, sys.exc_info(), sys.last_value is e, e.__traceback__ is tb, traceback.extract_tb(tb))\n"
        "sys.excepthook = hook\nimport atexit; atexit.register(lambda: print(sys.excepthook is hook))\n1 / 0",
    ),
    Case("own_hook_fails", "import sys\ndef hook(*a):\n    raise RuntimeError('hook')\nsys.excepthook = hook\n1 / 0"),
    Case("own_hook_exits", "import sys\nsys.excepthook = lambda *a: sys.exit(9)\n1 / 0"),
    Case("no_hook", "import sys\ndel sys.excepthook\n1 / 0"),
    Case("hook_untouched", "import sys; print(sys.excepthook is sys.__excepthook__)"),
    Case(
        "own_thread_hook",
        "import threading\ndef hook(a): print('hook', a.exc_type, a.thread.name)\nthreading.excepthook = hook\n"
        "t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
    ),
    Case("thread_fails", "import threading\nt = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()"),
    Case(
        "threads_and_exit_handlers",
        "import atexit, threading, weakref\n"
        "class Thing: pass\n"
        "thing = Thing(); weakref.finalize(thing, print, 'finalized')\n"
        "gate = threading.Event()\n"
        "def work():\n    gate.wait(); print('worked', [t.name for t in threading.enumerate()])\n"
        "atexit.register(print, 'last'); atexit.register(print, 'first')\n"
        "threading.Thread(target=work).start()\n"
        "print('end', threading.active_count()); gate.set()",
    ),
    Case("exit_handler_fails", "import atexit; atexit.register(int, 'x'); print('x')"),
    Case("exit_in_exit_handler", "import atexit, sys\natexit.register(sys.exit, 4)"),
    Case(
        "objects_end_before_exit_handlers",
        "import atexit, sys\nclass Thing:\n    def __del__(self): print('gone')\n"
        "def main():\n    thing = Thing()\n    sys.exit(2)\natexit.register(print, 'handler')\nmain()",
    ),
    Case(
        "objects_of_an_error_live_on",
        "import atexit, sys\nclass Thing:\n    def __del__(self): print('gone')\n"
        "def main():\n    thing = Thing()\n    1 / 0\natexit.register(print, 'handler')\nmain()",
    ),
    Case("executed_anew", ANEW.format("os.execv(sys.executable, [*command, *sys.argv])"), ("main.py", "a", "-m")),
    Case("executed_anew_as_it_was_started", ANEW.format("os.execvp(sys.executable, sys.orig_argv)")),
    Case(
        "executed_anew_with_an_environment",
        ANEW.format("os.execle(sys.executable, *command, sys.argv[0], 'b', {**os.environ, 'ANEW': '2'})"),
    ),
    Case(
        "executed_anew_without_an_environment",
        ANEW.format("os.execve(sys.executable, [*command, *sys.argv], {'ANEW': '2'})"),
    ),
    Case("executed_anew_by_bytes", ANEW.format("os.execv(sys.executable.encode(), [b'python', b'-u', b'main.py'])")),
    Case(
        "module_executed_anew",
        files={"tool.py": ANEW.format("os.execv(sys.executable, [*command, '-m', 'tool', '-c'])")},
        arguments=("-m", "tool"),
    ),
    Case("executes_a_command", "import os, sys; os.execv(sys.executable, ['python', '-u', '-c', 'print(7)'])"),
    Case("executes_another_program", "import os; os.execlp('echo', 'echo', 'words')"),
    Case("executes_nothing", "import os; os.execv('/nowhere', ['nowhere'])"),
    Case("executes_no_command_line", "import os, sys; os.execv(sys.executable, 7)"),
    Case(
        "child_executes_itself_anew",
        ANEW.replace("    {}", "    if os.fork():\n        print(os.wait()[1])\n        sys.exit(4)\n    {}").format(
            "os.execv(sys.executable, [*command, *sys.argv])"
        ),
        is_told_of_threads=True,
    ),
    Case("spawned_children", CHILDREN, ("main.py", "spawn")),
    Case("forkserver_children", CHILDREN, ("main.py", "forkserver")),
    Case("forked_children", CHILDREN, ("main.py", "fork")),
    Case("spawned_children_of_a_module", files={"tool.py": CHILDREN}, arguments=("-m", "tool", "spawn")),
    Case(
        "forked_child_fails",
        "import os\npid = os.fork()\nif pid:\n    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
        "else:\n    raise ValueError('child')",
        is_told_of_threads=True,
    ),
    Case(
        "forked_child_exits",
        "import atexit, os, sys\natexit.register(lambda: print('handler', flush=True))\npid = os.fork()\n"
        "if pid:\n    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\nelse:\n    sys.exit(6)",
        is_told_of_threads=True,
    ),
    Case(
        "program_started",
        "import os, subprocess, sys\nos.environ['X_OWN'] = 'mine'\n"
        'code = \'import os; print(os.environ["X_OWN"], os.listdir("/proc/self/fd"))\'\n'
        "subprocess.run([sys.executable, '-c', code])",
    ),
    Case(
        "own_signal_handlers",
        "import os, signal\nprint(signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))\n"
        "signal.signal(signal.SIGTERM, lambda n, f: print('caught', n))\nos.kill(os.getpid(), signal.SIGTERM)\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, []))",
    ),
    Case(
        "broken_pipe_default",
        "import os, signal\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\nr, w = os.pipe(); os.close(r)\n"
        "print('before'); os.write(w, b'x'); print('never')",
    ),
    Case("first_descriptor", "import os; print(os.open('/dev/null', os.O_RDONLY), os.dup(1), os.pipe())"),
    Case(
        "all_descriptors_closed",
        "import os, sys\nos.closerange(3, 4096)\n"
        "f = open('kept.txt', 'w'); f.write('x' * 10); print(f.fileno()); sys.stdout.flush()\n"
        "import atexit; atexit.register(lambda: print(f.closed, f.write('y')))",
    ),
    Case(
        "every_number_taken",
        "import os\nos.closerange(3, 4096)\nfds = [os.open('kept.txt', os.O_RDWR | os.O_CREAT) for _ in range(1000)]\n"
        "import threading; threading.Event().wait(1.3)\n"
        "print(all(os.fstat(fd).st_size == 0 for fd in fds), len(fds)); os.closerange(3, 4096)",
    ),
    Case(
        "standard_output_moved",
        "import os\nprint('before')\nfd = os.open('own.log', os.O_WRONLY | os.O_CREAT); os.dup2(fd, 1)\n"
        "print('in the file'); os.dup2(2, 1); print('on stderr'); print(open('own.log').read(), end='')",
    ),
    Case("standard_error_closed", "import os, sys\nos.close(2)\nprint('alive')\nsys.stderr = None"),
    Case("device_of_standard_output", "with open('/dev/stdout', 'w') as f: f.write('through the device\\n')"),
    Case("standard_input", "print(repr(input()), open(0).read())", text_in=b"one\ntwo\n"),
    Case("progress_bar", "import sys\nfor i in range(5): print(f'\\r{i}', end='', file=sys.stderr)"),
    Case("raw_bytes", "import sys; sys.stdout.buffer.write(bytes(range(256))); print('tail', end='')"),
    Case("changes_folder", "import os; os.chdir('/'); print(__file__, os.getcwd()); 1 / 0"),
    Case("neighbour_shadows_library", "import queue, secrets, random", files={"secrets.py": "print('own secrets')"}),
    Case(
        "neighbour_package_shadows",
        files={"tool.py": "import selectors, msgspec", "selectors/__init__.py": "print(1)", "msgspec.py": "print(2)"},
        arguments=("-m", "tool"),
    ),
    Case(
        "neighbour_below",
        "import helper",
        files={"deep/main.py": "import helper", "deep/helper.py": "print(1)"},
        arguments=("deep/main.py",),
    ),
    Case("random_is_untouched", "import random; random.seed(1); print(random.random()); print(random.random())"),
    Case("warning", "import warnings; warnings.warn('careful'); import sys; print(sys.warnoptions, sys.flags)"),
    Case("warnings_are_errors", "print(1)", options=("-W", "error")),
    Case("development_mode", "import sys; print(sys.flags.dev_mode)\n1 / 0", options=("-X", "dev")),
    Case("asserts_off", "assert False; print('kept', __debug__)", options=("-O",)),
    Case("reads_its_source", "import inspect, sys\ndef f(): pass\nprint(inspect.getsource(f), inspect.getfile(f))"),
    Case("looks_at_modules", "import sys; print('torch' in sys.modules, 'asyncio' in sys.modules)"),
    Case("main_by_name", "import __main__, importlib\nx = 1\nprint(__main__.x, importlib.import_module('__main__').x)"),
    Case("settings", "import gc, sys; print(gc.isenabled(), sys.getrecursionlimit(), sys.getswitchinterval())"),
    Case("async_main", "import asyncio\nasync def f():\n    await asyncio.sleep(0); print(1)\nasyncio.run(f())"),
]
