"""Before a VM starts, the project's modules have byte code of what they are now."""

import importlib.util
import os
import py_compile
from pathlib import Path

import pytest

from scenarios.testbed import launch


def test_modules_that_have_changed_are_compiled_before_a_vm_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "ROOT", tmp_path)
    module, fresh = tmp_path / "controller" / "app.py", tmp_path / "hosts" / "agent" / "agent.py"
    for path in (module, fresh):
        path.parent.mkdir(parents=True)
        path.write_text("value = 1\n")
    py_compile.compile(str(module), doraise=True)
    module.write_text("value = 22\n")
    os.utime(module, (10**9, 10**9))
    launch.compile_modules.__wrapped__()
    for path in (module, fresh):
        header = Path(importlib.util.cache_from_source(str(path))).read_bytes()[:16]  # PEP 552: flags, mtime, size
        of_source = path.stat()
        found = [int.from_bytes(header[at : at + 4], "little") for at in (4, 8, 12)]
        assert found == [0, int(of_source.st_mtime), of_source.st_size]
