"""The import watch: runs right after the import of a module, leaves no trace of itself, and changes no failure."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from traceml_client.torch_hooks.import_watch import ImportWatch

NAME = "watched_by_a_test"


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    """The file of an importable module that nobody has imported."""
    path = tmp_path / f"{NAME}.py"
    path.write_text("VALUE = 1\n")
    sys.path.insert(0, str(tmp_path))
    finders = list(sys.meta_path)
    importlib.invalidate_caches()
    yield path
    sys.path.remove(str(tmp_path))
    sys.modules.pop(NAME, None)
    assert sys.meta_path == finders, "the watch is still there"


class Watched:
    """A watch that has begun, and what it reported."""

    def __init__(self, *, is_failing: bool = False) -> None:
        self.seen: list[ModuleType] = []
        self.faults: list[str] = []
        self._is_failing = is_failing
        self.watch = ImportWatch({NAME: self._on_import}, lambda kind, error: self.faults.append(f"{kind}: {error}"))
        self.watch.begin()

    def _on_import(self, module: ModuleType) -> None:
        self.seen.append(module)
        if self._is_failing:
            raise RuntimeError("no")


@pytest.mark.usefixtures("source")
def test_the_action_follows_the_import_at_once_and_once() -> None:
    watched = Watched()
    assert watched.seen == []
    module = importlib.import_module(NAME)
    assert watched.seen == [module]
    assert module.VALUE == 1
    importlib.reload(module)
    assert len(watched.seen) == 1


@pytest.mark.usefixtures("source")
def test_the_module_keeps_no_trace() -> None:
    spec = importlib.util.find_spec(NAME)
    Watched()
    module = importlib.import_module(NAME)
    assert spec is not None
    assert module.__spec__ is not None
    assert type(module.__spec__.loader) is type(spec.loader)
    assert module.__loader__ is module.__spec__.loader


@pytest.mark.usefixtures("source")
def test_asking_for_the_spec_is_no_import() -> None:
    watched = Watched()
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert spec.origin is not None
    assert watched.seen == []
    importlib.import_module(NAME)
    assert len(watched.seen) == 1


def test_a_failed_import_has_no_frame_of_ours_and_a_later_one_counts(source: Path) -> None:
    source.write_text("raise ImportError('broken on purpose')\n")
    watched = Watched()
    with pytest.raises(ImportError, match="broken on purpose") as caught:
        importlib.import_module(NAME)
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert files[-1] == str(source)
    assert not any("import_watch" in file for file in files)
    assert watched.seen == []
    source.write_text("VALUE = 22\n")
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert len(watched.seen) == 1


@pytest.mark.usefixtures("source")
def test_an_imported_module_is_acted_on_at_once() -> None:
    module = importlib.import_module(NAME)
    assert Watched().seen == [module]


@pytest.mark.usefixtures("source")
def test_an_action_that_fails_does_not_fail_the_import() -> None:
    watched = Watched(is_failing=True)
    assert importlib.import_module(NAME).VALUE == 1
    assert watched.faults == [f"the hooks on {NAME}: no"]


def test_watching_for_torch_does_not_import_it() -> None:
    """Nor asyncio, nor anything else that is slow; a name that exists nowhere stays unknown."""
    program = """
import sys
from traceml_client import torch_hooks
from traceml_client.protocol import ring
from traceml_client.recorder import Recorder
memory = memoryview(bytearray(ring.ring_bytes(16, 16)))
ring.initialize(memory, 16, 16)
torch_hooks.install_when_imported(Recorder(memory), print)
try:
    import no_such_module_anywhere
except ModuleNotFoundError:
    print(sorted({"torch", "asyncio", "numpy", "psutil"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=50)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.torch
def test_a_script_that_imports_torch_later_is_measured() -> None:
    program = """
import sys
from traceml_client import torch_hooks
from traceml_client.protocol import ring
from traceml_client.recorder import Recorder
memory = memoryview(bytearray(ring.ring_bytes(16, 16)))
ring.initialize(memory, 16, 16)
recorder = Recorder(memory)
torch_hooks.install_when_imported(recorder, print)
from torch import nn, ones, optim
model = nn.Linear(4, 1)
optimizer = optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(ones(2, 4)).sum().backward()
    optimizer.step()
print(recorder.reader.head(0), [type(f).__name__ for f in sys.meta_path if "traceml" in type(f).__module__])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=55)
    assert (done.stdout, done.stderr) == ("5 []\n", "")
