"""Another name of the package ``policies``: importing this *is* importing that.

``llmroute_env.policies.x`` and ``policies.x`` are one module, so no class exists twice and
``isinstance`` and pickles hold across both names.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

import policies
from policies import *  # noqa: F403  (for readers and type checkers; the module is replaced below)

_ALIAS = __name__
_REAL = policies.__name__


class _Loader(importlib.abc.Loader):
    """Hands out the module of the real name."""

    def __init__(self, real: str) -> None:
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:  # noqa: ARG002
        module = importlib.import_module(self._real)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system had put the alias's here


class _Finder(importlib.abc.MetaPathFinder):
    """Finds ``llmroute_env.policies.x`` as ``policies.x``."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(f"{_ALIAS}."):
            return None
        real = _REAL + fullname.removeprefix(_ALIAS)
        if importlib.util.find_spec(real) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, _Loader(real), is_package=True)


sys.meta_path.insert(0, _Finder())
sys.modules[_ALIAS] = policies
