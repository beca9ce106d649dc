"""The tiny configurations are complete, run, and notice a layer that goes wrong."""

from __future__ import annotations

import functools
import json
from functools import partial
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten, tree_map
from mlx_lm.utils import load_model

from tests.support.architectures import (
    ARCHITECTURES,
    NOT_MODELS,
    UNSUPPORTED,
    all_modules,
    build,
    facts,
    single_cache,
    text_modules,
)
from tests.support.architectures.facts import PROMPT, TOLERANCE, Facts, whole
from tests.support.questions import ask
from tests.support.tiny_model import LLAMA_400M, QWEN2_75M, write_random_model, write_tiny_model

RUNNABLE = [name for name in text_modules() if name not in UNSUPPORTED]

# Faults of the unsharded models; a column fails for the modules named here and for no others.
UPSTREAM_FAULTS: dict[str, dict[str, str]] = {
    "decode": {
        "phi3small": "adds its mask of true and false to the scores, so that it hides nothing",
        "plamo3": "its mask shows one key more than its window, which a rotating cache no longer has",
    },
    "chunks": {
        "phi3small": "as for decode",
        "plamo3": "as for decode",
    },
    "fork": {},
    "batch": {
        "afm7": "the layers that share keys rotate every row by the longest row's position",
        "deepseek_v41": "its cache class has no merge",
        "gemma2": "its scores have one axis more than a batch's mask",
        "gpt_bigcode": "takes the position as one number for all rows",
        "llama4": "its chunked cache class has no merge",
        "minimax_m3_vl": "picks keys by blocks of cache slots, and padding moves a row's keys to other blocks",
        "phi3small": "its scores have one axis more than a batch's mask",
    },
}


@functools.lru_cache(maxsize=1)
def tiny(name: str) -> nn.Module:
    return build(name)


@functools.cache
def measured(name: str) -> Facts:
    return facts(tiny(name))


def test_every_module_of_upstream_is_a_model_with_a_configuration_or_a_known_helper() -> None:
    assert set(all_modules()) - set(text_modules()) == set(NOT_MODELS)
    assert set(ARCHITECTURES) == set(text_modules())
    assert set(UNSUPPORTED) <= set(ARCHITECTURES)


@pytest.mark.parametrize("unsupported", sorted(UNSUPPORTED))
def test_a_module_called_unsupported_does_fail_upstream(unsupported: str) -> None:
    with pytest.raises((RuntimeError, ValueError)):
        whole(build(unsupported), PROMPT)


@pytest.mark.parametrize("name", RUNNABLE)
def test_an_architecture_answers_every_question(name: str, tmp_path: Path) -> None:
    ask(
        partial(prompt_and_decode_steps_give_the_logits_of_the_whole, name),
        partial(every_layer_shows_in_the_logits, name),
        partial(a_written_model_loads_as_the_built_one, name, tmp_path),
    )


def prompt_and_decode_steps_give_the_logits_of_the_whole(name: str) -> None:
    fact = measured(name).decode
    assert fact.holds or name in UPSTREAM_FAULTS["decode"], fact.seen


def every_layer_shows_in_the_logits(name: str) -> None:
    model = tiny(name)
    tokens = PROMPT[:4]
    wanted = whole(model, tokens)
    assert not mx.any(mx.isnan(wanted)).item()
    layers = model.layers
    assert 6 <= len(layers) <= 8
    for index, layer in enumerate(layers):
        intact = layer.parameters()
        layer.update(tree_map(_disturbed, intact))
        moved = mx.abs(mx.where(mx.isinf(wanted), 0, whole(model, tokens) - wanted)).max().item()
        layer.update(intact)
        assert moved > 10 * TOLERANCE, f"layer {index} moves the logits by no more than {moved}"


@pytest.mark.parametrize("column", sorted(UPSTREAM_FAULTS))
def test_the_unsharded_models_fail_a_column_only_where_upstream_is_known_to(column: str) -> None:
    failed = {name: fact.seen for name in RUNNABLE if not (fact := measured(name).columns()[column]).holds}
    assert failed.keys() == UPSTREAM_FAULTS[column].keys(), failed


def test_caches_are_trimmable_where_they_say_so() -> None:
    failed = {}
    for name in RUNNABLE:
        for column in ("trim", "trim_past_window"):
            fact = measured(name).columns()[column]
            if not fact.holds and fact.seen != "its caches cannot be trimmed":
                failed[name, column] = fact.seen
    assert not failed


def a_written_model_loads_as_the_built_one(name: str, tmp_path: Path) -> None:
    tokens = PROMPT[:4]
    write_tiny_model(tmp_path, name, tokenizer=False)
    loaded, _ = load_model(tmp_path)
    assert mx.array_equal(whole(loaded, tokens), whole(_as_loaded(tiny(name)), tokens)).item()


def test_the_same_seed_builds_the_same_model_and_another_seed_another() -> None:
    first, again, other = (whole(build("qwen3_next", seed), PROMPT) for seed in (1, 1, 2))
    assert mx.array_equal(first, again).item()
    assert mx.abs(first - other).max().item() > 10 * TOLERANCE


def test_a_model_is_written_in_as_many_files_as_asked(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, "qwen3", shards=4, dtype="bfloat16", tokenizer=False)
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert files == [f"model-{number:05d}-of-00004.safetensors" for number in range(1, 5)]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    for file in files:
        arrays, metadata = mx.load(str(tmp_path / file), return_metadata=True)
        assert metadata == {"format": "mlx"}
        assert sorted(arrays) == [name for name, owner in index["weight_map"].items() if owner == file]
        assert all(array.dtype == mx.bfloat16 for array in arrays.values())
    loaded, _ = load_model(tmp_path)
    assert mx.array_equal(whole(loaded, PROMPT), whole(build("qwen3", dtype=mx.bfloat16), PROMPT)).item()


@pytest.mark.parametrize(
    "quantize",
    [{"bits": 4, "group_size": 32}, {"bits": 8}, {"mode": "mxfp4"}],
    ids=["4 bits", "8 bits", "mxfp4"],
)
def test_a_quantized_model_is_near_the_one_it_was_made_from(quantize: dict[str, object], tmp_path: Path) -> None:
    write_tiny_model(tmp_path, "qwen2", quantize=quantize, tokenizer=False)
    loaded, config = load_model(tmp_path)
    assert isinstance(loaded.model.layers[0].mlp.up_proj, nn.QuantizedLinear)
    assert config["quantization"].items() >= quantize.items()
    built, got = whole(build("qwen2"), PROMPT), whole(loaded, PROMPT)
    agreement = mx.sum(built * got) / mx.sqrt(mx.sum(built**2) * mx.sum(got**2))
    assert 0.8 < agreement.item() < 1.0


def test_overrides_reach_the_text_part_of_a_wrapped_model(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, "gemma3", tokenizer=False, vocab_size=300, num_hidden_layers=3, eos_token_id=2)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["eos_token_id"] == 2
    assert config["vocab_size"] == config["text_config"]["vocab_size"] == 300
    loaded, _ = load_model(tmp_path)
    assert len(loaded.layers) == 3


def test_a_tiny_model_comes_with_a_tokenizer_that_fits_it(tmp_path: Path) -> None:
    from mlx_lm import load

    write_tiny_model(tmp_path)
    model, tokenizer = load(str(tmp_path))
    tokens = tokenizer.encode("Many machines, one voice.")
    assert tokens
    assert whole(model, tokens).shape == (len(tokens), tokenizer.vocab_size)


def test_more_files_than_tensors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="into 1000 files"):
        write_tiny_model(tmp_path, shards=1000, tokenizer=False)


def test_a_large_model_is_written_without_holding_it_in_memory(tmp_path: Path) -> None:
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    write_random_model(tmp_path, QWEN2_75M | {"num_hidden_layers": 4, "vocab_size": 8192}, shards=2)
    held = mx.get_peak_memory() - before
    written = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    largest = 8192 * 512 * 4
    assert written > 60_000_000
    assert held < 3 * largest


def test_the_model_for_memory_tests_has_one_and_a_half_gigabytes() -> None:
    from tests.support.architectures.build import instantiate

    model = instantiate(LLAMA_400M, 0, mx.float32)
    assert sum(value.nbytes for _, value in tree_flatten(model.parameters())) > 1_500_000_000
    assert len(single_cache(model)) == 30


def test_facts_are_printed_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    table = {name: measured(name).columns() for name in RUNNABLE}
    lines = [f"{'module':24}" + "".join(f"{column:18}" for column in table["llama"])]
    lines += [f"{name:24}" + "".join(_cell(fact.holds) for fact in row.values()) for name, row in table.items()]
    lines.append(f"{len(table)} modules run")
    lines += [f"{name} does not: {reason}" for name, reason in UNSUPPORTED.items()]
    with capsys.disabled():
        print("\n" + "\n".join(lines))
    assert len(table) >= 110


def _cell(holds: bool) -> str:
    return f"{'yes' if holds else 'no':18}"


def _disturbed(value: mx.array) -> mx.array:
    """Half as large: a change that no norm behind the layer can undo, since the residual stream stays."""
    return value * 0.5 if mx.issubdtype(value.dtype, mx.floating) else value


def _as_loaded(model: nn.Module) -> nn.Module:
    """The model after upstream's own tidying of a checkpoint, which for one architecture also scales its head."""
    if hasattr(model, "sanitize"):
        model.load_weights(list(model.sanitize(dict(tree_flatten(model.parameters()))).items()))
    return model
