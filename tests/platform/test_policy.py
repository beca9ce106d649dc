from __future__ import annotations

import resource
from collections.abc import Mapping

import pytest

from chorus.platform.accelerator.device import Backend, choose_backend
from chorus.platform.accelerator.dtype import DtypePolicy, Form, choose_dtype, on_backend, planned_policy, rule
from chorus.platform.storage.filelimit import raised

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
        "float32", "unpacked", "float32 was asked for; unpacked to 0 MiB of 0 MiB"
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
    assert rule("metal", kernels=True) == "weights as stored"
    assert rule("cpu", kernels=True) == (
        "float32; on a CPU packed weights are multiplied as they are, with int8 activations"
    )
    assert "unpacked when they fit" in (lacking := rule("cpu", kernels=False))
    assert "packed products need onnx and onnxruntime: in a checkout of Chorus: pip install '.[cpu]'" in lacking
    assert rule("cuda", kernels=False).startswith("bfloat16")


PACKED_WHERE: dict[tuple[Backend, bool, str, str, int | None], Form] = {
    ("cpu", True, "auto", "auto", None): "packed",
    ("cpu", True, "auto", "auto", 8): "packed",
    ("cpu", True, "auto", "packed", None): "packed",
    ("cpu", True, "auto", "float32", None): "unpacked",
    ("cpu", True, "float32", "auto", None): "unpacked",
    ("cpu", True, "stored", "auto", None): "",
    ("cpu", True, "bfloat16", "packed", None): "packed",
    ("cpu", False, "auto", "auto", None): "",
    ("cpu", False, "auto", "packed", None): "",
    ("cpu", False, "auto", "auto", 8): "packed to 8 bits",
    ("cpu", False, "float32", "packed", 4): "packed to 4 bits",
    ("cuda", True, "auto", "packed", 4): "unpacked",
    ("cuda", False, "auto", "packed", 4): "",
    ("metal", True, "auto", "packed", None): "",
}


@pytest.mark.parametrize("asked", PACKED_WHERE)
def test_a_cpu_multiplies_packed_weights_unless_something_else_is_asked_for(
    asked: tuple[Backend, bool, str, str, int | None],
) -> None:
    backend, quantized, wanted, cpu_products, pack = asked
    sizes = 120, 800, 400, 800
    told = choose_dtype(backend, "float16", quantized, *sizes, wanted, cpu_products, pack, kernels=True)
    assert told.form == PACKED_WHERE[asked]
    assert planned_policy(told.name).form == told.form
    if told.packed:
        assert told.dtype == "float32"
        assert told.reason.startswith(f"{told.form}: on a CPU packed weights are multiplied")


@pytest.mark.parametrize(("quantized", "budget", "form"), [(True, 800, "unpacked"), (True, 1, ""), (False, 800, "")])
@pytest.mark.parametrize("wanted", ["auto", "bfloat16"])
def test_without_the_kernels_it_is_float32_and_the_remedy_is_told(
    quantized: bool, budget: int, form: Form, wanted: str
) -> None:
    told = choose_dtype("cpu", "float16", quantized, 120, 800, 400, budget, wanted, "packed", 4, kernels=False)
    assert (told.dtype, told.form) == ("float32", form)
    assert "packed products need onnx and onnxruntime: in a checkout of Chorus: pip install" in told.reason


def test_unknown_products_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'int8' is unknown: use one of auto, packed, float32"):
        choose_dtype("cpu", "float16", True, 120, 800, 400, 800, cpu_products="int8")


@pytest.mark.parametrize("form", ["packed", "packed to 8 bits", "packed to 4 bits"])
def test_a_backend_that_cannot_do_as_planned_does_what_it_can(form: Form) -> None:
    planned = DtypePolicy("float32", form, "as planned")
    assert on_backend(planned, "cpu", kernels=True) == planned
    for backend in ("metal", "cuda"):
        assert on_backend(planned, backend, kernels=True).name == "stored"
    lacking = on_backend(planned, "cpu", kernels=False)
    assert lacking.name == ("float32, unpacked" if form == "packed" else "float32")
    assert "packed products need onnx" in lacking.reason


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
        import chorus.cluster.doctor.ask, chorus.platform.process.lifeline
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
