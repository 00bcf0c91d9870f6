"""Doing something once a module is imported, without importing it: torch loads some of its parts on first use."""

import sys
from typing import Any, Callable, Dict, List


class LateImports:
    """A finder in front of the others that finds nothing itself; it adds a call behind the import of some modules.

    Parameters
    ----------
    failed: takes an exception of a function or of ours; the import goes on.
    """

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._wanted: Dict[str, List[Callable[[Any], None]]] = {}

    def when(self, name: str, function: Callable[[Any], None]) -> None:
        """Call `function(module)` when the module has been imported; at once when it is there already."""
        module = sys.modules.get(name)
        if module is not None:
            function(module)
            return
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        self._wanted.setdefault(name, []).append(function)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec that the other finders have, with a call behind its execution; None for other modules."""
        functions = self._wanted.pop(name, None)
        if functions is None:
            return None
        if not self._wanted and self in sys.meta_path:
            sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                self._follow(spec, functions)
                return spec
        return None

    def _follow(self, spec: Any, functions: List[Callable[[Any], None]]) -> None:
        """Put the calls behind `exec_module` of the spec's loader, which belongs to this module alone."""
        execute = getattr(spec.loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: Any) -> None:
            execute(module)
            for function in functions:
                try:
                    function(module)
                except Exception as error:  # Ours, not the importing program's.
                    self._failed(error)

        try:
            spec.loader.exec_module = exec_module
        except (AttributeError, TypeError) as error:
            self._failed(error)
