"""Which calls and imports could run code that lies in data, or hand a string to a shell; found in the syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "jsonpickle"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "input"}
FORBIDDEN_ATTRIBUTES = {
    "recv_pyobj": "unpickles what a stranger sent",
    "send_pyobj": "pickles",
    "system": "goes through a shell",
    "popen": "goes through a shell",
    "getoutput": "goes through a shell",
    "getstatusoutput": "goes through a shell",
    "create_subprocess_shell": "goes through a shell",
}


def find_dangers(source: str) -> Iterator[tuple[int, str]]:
    """Line and reason of everything forbidden in a module's source."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            names = []
        for name in names:
            if name.split(".")[0] in FORBIDDEN_MODULES:
                yield node.lineno, f"imports {name}"
        if isinstance(node, ast.Call):
            yield from _find_in_call(node)


def _find_in_call(call: ast.Call) -> Iterator[tuple[int, str]]:
    function = call.func
    if isinstance(function, ast.Name) and function.id in FORBIDDEN_CALLS:
        yield call.lineno, f"calls {function.id}"
    if isinstance(function, ast.Attribute):
        owner = ast.unparse(function.value)
        if function.attr in FORBIDDEN_ATTRIBUTES and (
            owner in ("os", "subprocess", "asyncio") or "pyobj" in function.attr
        ):
            yield call.lineno, f"calls {owner}.{function.attr}, which {FORBIDDEN_ATTRIBUTES[function.attr]}"
        if function.attr == "load" and owner == "torch" and not _is_true(call, "weights_only"):
            yield call.lineno, "calls torch.load without weights_only=True"
        if function.attr == "load" and owner in ("np", "numpy") and _has(call, "allow_pickle"):
            yield call.lineno, "calls numpy.load with allow_pickle"
    if _has(call, "shell"):
        yield call.lineno, "passes shell="


def _has(call: ast.Call, name: str) -> bool:
    return any(
        keyword.arg == name and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
        for keyword in call.keywords
    )


def _is_true(call: ast.Call, name: str) -> bool:
    return any(
        keyword.arg == name and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for keyword in call.keywords
    )


def dangers_below(root: Path) -> list[str]:
    """Everything forbidden in the modules below a directory."""
    return [
        f"{path.relative_to(root)}:{line} {what}"
        for path in sorted(root.rglob("*.py"))
        for line, what in find_dangers(path.read_text())
    ]
