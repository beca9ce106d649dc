from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import MODEL_ARCHITECTURE_REMAPPING, MODEL_REMAPPING

from chorus.models import LocalModel, ModelError
from chorus.models.architectures import ALIASES, architecture
from chorus.models.servable import check_servable
from tests.support.architectures import ARCHITECTURES
from tests.support.tiny_tokenizer import write_tiny_tokenizer


def model(folder: Path, **config: Any) -> LocalModel:
    (folder / "config.json").write_text(json.dumps(config))
    return LocalModel("model", "model", folder)


def test_our_table_of_other_names_is_that_of_mlx_lm() -> None:
    assert ALIASES == MODEL_REMAPPING
    rows = {name: architecture(name) for name in MODEL_ARCHITECTURE_REMAPPING.values()}
    assert set(rows.values()) == {architecture("unheard_of")}, "a row that only a class name leads to is not found"


@pytest.mark.parametrize("alias", sorted(set(ALIASES) - {"mistral"}))
def test_a_model_under_another_name_is_planned_as_what_it_is(alias: str) -> None:
    assert architecture(alias) == architecture(ALIASES[alias])


def test_every_architecture_and_every_other_name_is_known(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    for name in (*(config["model_type"] for config in ARCHITECTURES.values()), *ALIASES):
        check_servable(model(tmp_path, model_type=name))


def test_a_type_that_nobody_knows_is_named_with_the_class_and_the_remedy(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    unknown = model(tmp_path, model_type="brand_new", architectures=["LlamaForCausalLM"])
    with pytest.raises(ModelError, match=r"'brand_new' \(LlamaForCausalLM\): use a newer Chorus or another model"):
        check_servable(unknown)
    check_servable(model(tmp_path, model_type="brand_new", model_file="own.py"))


@pytest.mark.parametrize("classes", [None, "LlamaForCausalLM", [None], {}, [7]], ids=str)
def test_whatever_stands_for_the_classes_the_type_is_named(tmp_path: Path, classes: Any) -> None:
    write_tiny_tokenizer(tmp_path)
    with pytest.raises(ModelError, match="'brand_new'"):
        check_servable(model(tmp_path, model_type="brand_new", architectures=classes))


def test_a_folder_without_a_tokenizer_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer: put the tokenizer\.json"):
        check_servable(model(tmp_path, model_type="llama"))
    (tmp_path / "tokenizer.model").touch()
    check_servable(model(tmp_path, model_type="llama"))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "bert", "architectures": ["BertModel"]}, r"BertModel \(model type 'bert'\) is an encoder"),
        ({"model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"]}, "XLMRobertaModel .* is an encoder"),
        ({"model_type": "nomic_bert"}, "model type 'nomic_bert' is an encoder"),
        ({"model_type": "mpnet", "architectures": ["MPNetForMaskedLM"]}, "MPNetForMaskedLM .* is an encoder"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "'t5' has an encoder besides its decoder"),
        (
            {"model_type": "gemma3_text", "architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True},
            r"Gemma3TextModel \(model type 'gemma3_text'\) reads its text in both directions, as use_bidirectional",
        ),
        ({"model_type": "qwen2", "architectures": ["Qwen2Model"], "is_causal": False}, "Qwen2Model .* as is_causal in"),
        ({"model_type": "mistral3", "text_config": {"is_causal": False}}, "'mistral3' reads its text in both"),
        (
            {"model_type": "llama_bidirec", "architectures": ["LlamaBidirectionalModel"]},
            "LlamaBidirectionalModel .* both",
        ),
        ({"model_type": "nvembed", "architectures": ["NVEmbedModel"]}, "NVEmbedModel .* both directions"),
    ],
    ids=str,
)
def test_what_is_no_decoder_is_refused_by_its_name(tmp_path: Path, config: dict[str, Any], reason: str) -> None:
    """Some of them would load, and give embeddings that are wrong."""
    write_tiny_tokenizer(tmp_path)
    with pytest.raises(ModelError, match=rf"{reason}.*Chorus serves decoders: for embeddings, take one"):
        check_servable(model(tmp_path, **config))


def test_embedders_that_are_decoders_are_served(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    check_servable(model(tmp_path, model_type="qwen3", architectures=["Qwen3ForCausalLM"]))
    check_servable(model(tmp_path, model_type="mistral", architectures=["MistralModel"], is_causal=True))
    images = {"use_bidirectional_attention": "vision"}
    check_servable(model(tmp_path, model_type="gemma4", text_config=images))
