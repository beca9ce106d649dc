from __future__ import annotations

import resource
from collections.abc import Mapping

import pytest

from chorus.platform.device import Backend, choose_backend
from chorus.platform.dtype import DtypePolicy, choose_dtype, rule
from chorus.platform.filelimit import raised

from .conftest import RunPython


def policy(backend: Backend, quantized: bool, budget: int, wanted: str = "auto") -> DtypePolicy:
    return choose_dtype(backend, "float16", quantized, 120, 800, 400, budget, wanted)


@pytest.mark.parametrize(
    ("backend", "quantized", "budget", "dtype", "dequantize"),
    [
        ("cpu", True, 800, "float32", True),
        ("cpu", True, 799, "float32", False),
        ("cpu", False, 10, "float32", False),
        ("cuda", True, 400, "bfloat16", True),
        ("cuda", True, 399, "stored", False),
        ("cuda", False, 400, "stored", False),
        ("metal", True, 10_000, "stored", False),
        ("metal", False, 10_000, "stored", False),
    ],
)
def test_each_backend_gets_its_own_number_type(
    backend: Backend, quantized: bool, budget: int, dtype: str, dequantize: bool
) -> None:
    chosen = policy(backend, quantized, budget)
    assert (chosen.dtype, chosen.dequantize) == (dtype, dequantize)
    assert chosen.reason


def test_what_is_asked_for_wins() -> None:
    assert policy("cuda", True, 800, "float32") == DtypePolicy(
        "float32", True, "float32 was asked for; unpacked to 0 MiB of 0 MiB"
    )
    assert policy("cpu", True, 10_000, "stored").dtype == "stored"
    assert not policy("cpu", True, 10_000, "stored").dequantize


@pytest.mark.parametrize("wanted", ["float16", "bfloat16", "float32"])
def test_metal_never_unpacks_whatever_is_asked_for_and_fits(wanted: str) -> None:
    chosen = policy("metal", True, 10_000, wanted)
    assert (chosen.dtype, chosen.dequantize) == (wanted, False)
    assert "Metal computes with packed weights" in chosen.reason


def test_a_type_that_was_asked_for_but_does_not_fit_stays_quantized() -> None:
    chosen = policy("cuda", True, 10, "float16")
    assert (chosen.dtype, chosen.dequantize) == ("float16", False)
    assert "kept quantized" in chosen.reason


def test_an_unknown_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'int8' is unknown: use one of auto, stored, float32"):
        policy("cpu", True, 10, "int8")


def test_every_backend_can_tell_its_rule() -> None:
    assert rule("metal") == "weights as stored"
    assert rule("cpu").startswith("float32")
    assert rule("cuda").startswith("bfloat16")


@pytest.mark.parametrize(
    ("system", "machine", "wheel", "gpu", "environment", "backend"),
    [
        ("Darwin", "arm64", False, False, {}, "metal"),
        ("Darwin", "x86_64", False, False, {}, "cpu"),
        ("Linux", "x86_64", True, True, {}, "cuda"),
        ("Linux", "x86_64", True, False, {}, "cpu"),
        ("Linux", "x86_64", False, True, {}, "cpu"),
        ("Linux", "aarch64", True, True, {"CUDA_VISIBLE_DEVICES": "0"}, "cuda"),
        ("Linux", "x86_64", True, True, {"CUDA_VISIBLE_DEVICES": ""}, "cpu"),
        ("Linux", "x86_64", True, True, {"CUDA_VISIBLE_DEVICES": "-1"}, "cpu"),
    ],
)
def test_the_backend_follows_from_the_machine_and_the_wheel(
    system: str, machine: str, wheel: bool, gpu: bool, environment: Mapping[str, str], backend: str
) -> None:
    assert choose_backend(system, machine, wheel, gpu, environment) == backend


NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("current", "after"),
    [
        ((20_000, 20_000), (20_000, 20_000)),
        ((256, NO_LIMIT), (2048, NO_LIMIT)),
        ((256, 1024), (1024, 1024)),
        ((NO_LIMIT, NO_LIMIT), (NO_LIMIT, NO_LIMIT)),
    ],
)
def test_the_limit_of_open_files_only_rises(current: tuple[int, int], after: tuple[int, int]) -> None:
    assert raised(current, (2048, 4096)) == after


def test_importing_mlx_lm_inside_the_guard_keeps_the_limit_of_open_files(run_python: RunPython) -> None:
    code = """
        import resource
        from chorus.platform import keep_file_limit, prepare
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        hard = 5000 if hard == resource.RLIM_INFINITY else min(5000, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        prepare(1)
        original = resource.setrlimit
        with keep_file_limit():
            import mlx_lm.utils
        assert resource.setrlimit is original
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard), resource.getrlimit(resource.RLIMIT_NOFILE)
        print("kept")
    """
    assert run_python(code) == "kept"


def test_the_platform_layer_imports_no_mlx(run_python: RunPython) -> None:
    code = """
        import sys
        import chorus.cluster.doctor.checks, chorus.platform.process.lifeline
        import chorus.platform.process.logs, chorus.cli.doctor
        print([name for name in sys.modules if name.split(".")[0] in ("mlx", "mlx_lm")])
    """
    assert run_python(code) == "[]"


def test_prepare_tells_what_it_did_and_sets_the_thread_counts(run_python: RunPython) -> None:
    code = """
        import os
        from chorus.platform import prepare
        print(prepare(threads=1).threads, *(os.environ[f"{name}_NUM_THREADS"] for name in ("OMP", "OPENBLAS", "MKL")))
    """
    assert run_python(code) == "1 1 1 1"


def test_ranks_on_this_machine_share_its_cores(run_python: RunPython) -> None:
    code = "from chorus.platform import prepare; print(prepare(ranks_here=10_000).threads)"
    assert run_python(code) == "1"
