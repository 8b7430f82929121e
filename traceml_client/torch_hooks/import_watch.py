"""Runs an action right after a named module was imported, whoever imports it.

A finder in front of `sys.meta_path` looks at names only. For a watched one it lets the real finders find it and stands
between the import system and the real loader for the time of one execution; the module keeps no trace of that, and an
import that fails has no frame of ours in its traceback. Once every action has run, the finder is gone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Action = Callable[[ModuleType], None]


def hide_frame(error: BaseException) -> None:
    """In an `except` clause that re-raises: take the frame of the function that contains it out of the traceback."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


class ImportWatch(MetaPathFinder):
    """Watches for modules by name.

    Args:
        actions: what to do after the import of each, or at once if it is imported already.
        fault: takes (what failed, error) where an action raises; the import itself is not disturbed.
    """

    def __init__(self, actions: Mapping[str, Action], fault: Callable[[str, BaseException], None]) -> None:
        self._actions = dict(actions)
        self._fault = fault

    def begin(self) -> None:
        for name in list(self._actions):
            module = sys.modules.get(name)
            if module is not None and not getattr(module.__spec__, "_initializing", False):
                self.run(name, module)
        if self._actions:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._actions:
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(fullname, path, target)) is not None:
                if spec.loader is not None:
                    spec.loader = _WatchedLoader(spec.loader, self)
                return spec
        return None

    def run(self, name: str, module: ModuleType) -> None:
        """The module has been imported: its action, once."""
        action = self._actions.pop(name, None)
        if action is not None:
            try:
                action(module)
            except Exception as error:  # noqa: BLE001 - the boundary
                self._fault(f"the hooks on {name}", error)
        if not self._actions and self in sys.meta_path:
            sys.meta_path.remove(self)


class _WatchedLoader(Loader):
    def __init__(self, loader: Loader, watch: ImportWatch) -> None:
        self._loader = loader
        self._watch = watch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        try:
            self._loader.exec_module(module)
        except BaseException as error:
            hide_frame(error)
            raise
        self._watch.run(module.__name__, module)
