from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from chorus.planning.split import SplitError
from chorus.rank.cache import caches
from chorus.rank.pipeline import rules
from chorus.rank.pipeline.rules import PLAIN
from chorus.rank.pipeline.stage import Stage, check_boundaries, config_layers, layer_count
from chorus.rank.upstream import decoders
from tests.support.architectures import ARCHITECTURES, UNSUPPORTED, build, build_config
from tests.support.architectures.build import instantiate
from tests.support.questions import ask

LLAMA: dict[str, Any] = ARCHITECTURES["llama"]
TOKENS = mx.array([[5, 17, 99, 3, 42]])
NOT_SPLIT = ("iquestloopcoder", "nanbeige")


def names(model: nn.Module) -> set[str]:
    return {name for name, _ in tree_flatten(model.parameters())}


def stages(make: Callable[[], nn.Module], *edges: int) -> list[Stage]:
    return [Stage(make(), first, last) for first, last in pairwise(edges)]


def logits(chain: list[Stage], tokens: mx.array = TOKENS) -> mx.array:
    passed: list[mx.array] | None = None
    for stage in chain:
        passed = stage.forward(tokens, stage.new_cache(), passed)
    assert passed is not None
    return passed[0]


def llama(**changes: Any) -> nn.Module:
    return build_config({**LLAMA, **changes})


def test_each_parameter_is_on_the_one_stage_that_uses_it() -> None:
    parts = [names(stage.model) for stage in stages(llama, 0, 4, 5, 7)]
    assert set.union(*parts) == names(llama())
    assert sum(map(len, parts)) == len(names(llama()))
    assert "model.embed_tokens.weight" in parts[0]
    assert {"model.norm.weight", "lm_head.weight"} <= parts[2]
    assert all(name.startswith("model.layers.4.") for name in parts[1])


def test_a_tied_embedding_is_on_the_first_and_the_last_stage() -> None:
    first, middle, last = (names(s.model) for s in stages(lambda: llama(tie_word_embeddings=True), 0, 2, 4, 7))
    assert "model.embed_tokens.weight" in first & last
    assert "model.embed_tokens.weight" not in middle


def test_a_whole_model_keeps_every_parameter() -> None:
    assert names(Stage(llama(), 0, 7).model) == names(llama())


@pytest.mark.parametrize("name", sorted(set(ARCHITECTURES) - set(UNSUPPORTED)))
def test_an_architecture_is_divided_as_its_names_and_its_configuration_say(name: str) -> None:
    """Nothing is computed: names and numbers are all that is asked for."""
    questions = [partial(the_configuration_tells_the_number_of_layers_or_nothing, name)]
    if name not in NOT_SPLIT:
        questions.append(partial(stages_together_hold_what_the_model_uses_and_no_layer_twice, name))
    ask(*questions)


def uncomputed(name: str) -> nn.Module:
    return instantiate(ARCHITECTURES[name], 0, mx.float32)


def the_configuration_tells_the_number_of_layers_or_nothing(name: str) -> None:
    assert config_layers(ARCHITECTURES[name]) in (None, layer_count(uncomputed(name)))


def stages_together_hold_what_the_model_uses_and_no_layer_twice(name: str) -> None:
    model = uncomputed(name)
    total = layer_count(model)
    whole = names(model)
    parts = [names(stage.model) for stage in stages(lambda: uncomputed(name), 0, 2, total)]
    assert set.union(*parts) <= whole
    in_layers = [{key for key in part if any(part_of.isdigit() for part_of in key.split("."))} for part in parts]
    assert not any(".layers." in key and key in in_layers[0] for key in in_layers[1])
    unused = whole - set.union(*parts)
    # Upstream keeps a head that a tied model never reads.
    assert all("lm_head" in key for key in unused), unused


def lazy(**changes: Any) -> nn.Module:
    return decoders.build({**LLAMA, **changes})


def test_making_a_stage_computes_nothing_and_far_weights_never_exist() -> None:
    wide = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "vocab_size": 4096}
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    model = lazy(**wide, head_dim=64)
    size = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    stage = Stage(model, 6, 7)
    assert mx.get_peak_memory() - before < size / 100
    mx.eval(stage.model.parameters())
    own = sum(array.nbytes for _, array in tree_flatten(stage.model.parameters()))
    assert own < size / 3
    assert mx.get_active_memory() - before < 1.2 * own


@pytest.mark.parametrize("quantize_first", [True, False])
def test_a_stage_may_be_made_before_or_after_quantizing(quantize_first: bool) -> None:
    def make() -> nn.Module:
        model = llama(tie_word_embeddings=True)
        nn.quantize(model, group_size=32, bits=8)
        return model

    def made(first: int, last: int) -> Stage:
        if quantize_first:
            return Stage(make(), first, last)
        stage = Stage(llama(tie_word_embeddings=True), first, last)
        nn.quantize(stage.model, group_size=32, bits=8)
        return stage

    chain = [made(0, 3), made(3, 4), made(4, 7)]
    assert mx.array_equal(logits(chain), logits([Stage(make(), 0, 7)]))
    assert any(name.endswith("scales") for name in names(chain[1].model))


def test_weights_loaded_strictly_after_the_split_are_used() -> None:
    weights = tree_flatten(llama().parameters())
    chain = stages(lazy, 0, 2, 3, 7)
    for stage in chain:
        own = names(stage.model)
        stage.model.load_weights([(name, array) for name, array in weights if name in own], strict=True)
    assert mx.array_equal(logits(chain), logits([Stage(llama(), 0, 7)]))


@pytest.mark.parametrize("name", ["llama", "ministral3", "gemma3n", "olmo_hybrid"])
def test_half_precision_weights_loaded_after_the_split_give_half_precision_results(name: str) -> None:
    whole = build(name, dtype=mx.bfloat16)
    total = layer_count(whole)
    weights = dict(tree_flatten(whole.parameters()))
    chain = stages(lambda: build(name), 0, 3, total)
    for stage in chain:
        stage.model.load_weights([(key, weights[key]) for key in names(stage.model)], strict=True)
    assert mx.array_equal(logits(chain), logits([Stage(whole, 0, total)]))


def test_what_a_stage_lacks_shows_as_not_a_number_and_never_as_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rules._registry, "talkie", PLAIN)
    assert mx.all(mx.isnan(logits(stages(lambda: build("talkie"), 0, 3, 7)))).item()


def test_without_logits_the_last_stage_hands_out_hidden_states() -> None:
    stage = Stage(llama(), 0, 7)
    hidden = stage.forward(TOKENS, stage.new_cache(), logits=False)[0]
    assert hidden.shape == (1, 5, 64)


def test_without_logits_the_cache_is_filled_all_the_same() -> None:
    for name in ("llama", "iquestloopcoder", "nanbeige", "mamba2"):
        model = build(name)
        stage = Stage(model, 0, layer_count(model))
        quiet, loud = stage.new_cache(), stage.new_cache()
        mx.eval(stage.forward(TOKENS, quiet, logits=False), stage.forward(TOKENS, loud))
        pairs = zip(caches.arrays(quiet), caches.arrays(loud), strict=True)
        assert all(mx.array_equal(*pair).item() for pair in pairs), name


def test_a_stage_that_lacks_its_input_says_so() -> None:
    first, last = stages(llama, 0, 3, 7)
    with pytest.raises(ValueError, match="layers 3 to 6 need"):
        last.forward(TOKENS, last.new_cache())
    with pytest.raises(ValueError, match="receive nothing"):
        first.forward(TOKENS, first.new_cache(), [mx.zeros((1, 5, 64))])


@pytest.mark.parametrize("edges", [(-1, 3), (3, 3), (5, 8)])
def test_layers_that_are_not_there_are_refused(edges: tuple[int, int]) -> None:
    with pytest.raises(SplitError):
        Stage(llama(), *edges)


def test_a_model_that_cannot_be_split_is_refused_by_its_configuration() -> None:
    for name in NOT_SPLIT:
        with pytest.raises(SplitError, match="run it on one rank"):
            check_boundaries(ARCHITECTURES[name], [3])
        check_boundaries(ARCHITECTURES[name], [])


def test_a_model_that_could_loop_but_does_not_may_be_split() -> None:
    once = {**ARCHITECTURES["nanbeige"], "num_loops": 1, "loop_loss_weights": None}
    check_boundaries(once, [3])
    assert mx.array_equal(
        logits(stages(lambda: build_config(once), 0, 3, 7)), logits([Stage(build_config(once), 0, 7)])
    )


@pytest.mark.parametrize("boundaries", [[0], [7], [5, 3], [3, 3]])
def test_boundaries_out_of_order_or_out_of_the_model_are_refused(boundaries: list[int]) -> None:
    with pytest.raises(SplitError):
        check_boundaries(LLAMA, boundaries)


def test_an_unknown_architecture_is_named() -> None:
    with pytest.raises(decoders.UnknownArchitecture, match="'nobody'"):
        check_boundaries({"model_type": "nobody"}, [1])


def test_far_caches_of_a_kind_share_one_ghost() -> None:
    stage = Stage(build("olmo3"), 6, 7)
    cache = stage.new_cache()
    assert len({id(entry) for entry in cache[:6]}) == len({type(entry) for entry in cache[:6]}) == 2
    assert len(cache) == 7
