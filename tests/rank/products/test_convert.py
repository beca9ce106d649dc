"""What becomes of a model's layers, and of what stands in front of them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.nn.layers.distributed import shard_linear

from chorus.rank.load import load_shard
from chorus.rank.products.convert import pack_products
from chorus.rank.products.layers import KernelEmbedding, KernelLinear, KernelMlp, KernelMlps
from chorus.rank.tensor.modules import Grouped, Padded, Summed
from chorus.rank.upstream.forms import become
from chorus.rank.upstream.weights import dequantize, quantize
from tests.rank.products.test_layers import WIDTH, Holder, near, random_layer, x_of
from tests.support.architectures import build, single_cache
from tests.support.tiny_model import write_tiny_model

HIDDEN = 96
TOKENS = mx.array([[7, 3, 11, 250, 42]])


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=True) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=True)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down(nn.silu(self.gate(x)) * self.up(x))


def tiny(name: str, **kind: Any) -> nn.Module:
    model = build(name)
    fits = getattr(model, "quant_predicate", None) or (lambda path, module: True)
    kind = {"group_size": 32, "bits": 4, **kind}

    def wanted(path: str, module: nn.Module) -> bool | dict[str, Any]:
        return kind if hasattr(module, "to_quantized") and fits(path, module) else False

    nn.quantize(model, class_predicate=wanted)
    mx.eval(model.parameters())
    return model


def logits(model: nn.Module) -> mx.array:
    return model(TOKENS, cache=single_cache(model))[0]


class Columns(nn.Module):
    """A layer with quantization groups of which another rank has a part: it is given zeros for what is not its own."""

    def __init__(self, layer: nn.Module, foreign: tuple[int, int]) -> None:
        super().__init__()
        become(layer, Padded, foreign=foreign)
        self.layer = layer

    def __call__(self, x: mx.array) -> mx.array:
        return self.layer(x)


@pytest.mark.parametrize("foreign", [(0, 5), (7, 0), (3, 9)])
def test_foreign_columns_of_a_shared_group_stay_padded(foreign: tuple[int, int]) -> None:
    module = Columns(random_layer(1, 24).to_quantized(group_size=32, bits=4), foreign)
    x = x_of(2, 3)[..., : WIDTH - sum(foreign)]
    expected = module(x)
    pack_products(module, tied_head=False)
    assert isinstance(module.layer, Padded)
    assert isinstance(module.layer, KernelLinear)
    assert near(module(x), expected)


@pytest.mark.parametrize("foreign", [(0, 5), (7, 0), (3, 9)])
def test_an_mlp_that_ends_inside_a_group_is_one_graph_with_the_sum_still_in_front(foreign: tuple[int, int]) -> None:
    module, own = Mlp(), HIDDEN - sum(foreign)
    nn.quantize(module, group_size=32, bits=4)
    for layer in (module.gate, module.up):
        for name in ("weight", "scales", "biases", "bias"):
            layer[name] = layer[name][:own]
    become(module.down, Padded, foreign=foreign)
    group = mx.distributed.init()
    become(module, Summed, group=group)
    x = x_of(2, 3)
    expected = module(x)
    pack_products(module, tied_head=False)
    assert [base.__name__ for base in type(module).__mro__[1:3]] == ["Summed", "Mlp"]
    assert isinstance(module, KernelMlp)
    assert not module.parameters()
    assert near(module(x), expected)


def test_mlx_lms_own_division_keeps_its_sum_and_adds_the_bias_once() -> None:
    group = mx.distributed.init()
    plain = random_layer(1, 24, bias=True).to_quantized(group_size=32, bits=4)
    kinds = {"rows": "all-to-sharded", "columns": "sharded-to-all"}
    layers = {name: shard_linear(plain, kind, group=group) for name, kind in kinds.items()}
    for layer in layers.values():
        become(layer, Grouped, group=group)
    holder, x = Holder(**layers), x_of(2, 3)
    expected = {name: layer(x) for name, layer in layers.items()}
    pack_products(holder, tied_head=False)
    for name in layers:
        assert isinstance(holder[name], Grouped)
        assert near(holder[name](x), expected[name])
    assert list(holder.columns.parameters()) == ["bias"]


def test_mlxs_copy_goes_as_the_kernels_comes() -> None:
    count, rows = 24, 2048
    each = rows * WIDTH // 2
    model = Holder(layers=[Holder(layer=random_layer(n, rows).to_quantized(group_size=32)) for n in range(count)])
    mx.eval(model.parameters())
    mx.clear_cache()
    before, seen = mx.get_active_memory(), []
    pack_products(model, tied_head=False, progress=lambda read: seen.append(mx.get_active_memory()))
    assert len(seen) == count
    assert before - seen[-1] > (count - 2) * each
    assert before - seen[count // 2] > (count // 2 - 2) * each


def test_the_embedding_of_all_tokens_doubles_as_the_head_and_no_other() -> None:
    model = Holder(
        per_layer=nn.Embedding(96, 4 * WIDTH).to_quantized(group_size=32, bits=4),
        tokens=nn.Embedding(96, WIDTH).to_quantized(group_size=32, bits=4),
        positions=nn.Embedding(32, WIDTH).to_quantized(group_size=32, bits=4),
    )
    pack_products(model, tied_head=True)
    assert {name for name, child in model.items() if isinstance(child, KernelEmbedding)} == {"tokens"}


def test_routers_and_latent_heads_stay_mlxs_and_are_unpacked() -> None:
    model = tiny("deepseek_v3")
    pack_products(model, tied_head=False)
    assert [name for name, module in model.named_modules() if "scales" in module] == ["model.embed_tokens"]
    experts = tiny("qwen3_moe")
    pack_products(experts, tied_head=False)
    mlp = experts.layers[-1].mlp
    assert type(mlp.gate) is nn.Linear
    assert isinstance(mlp.switch_mlp, KernelMlps)


def test_floats_of_8_bits_are_unpacked_and_one_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    model, same = tiny("qwen2", bits=8, mode="mxfp8"), tiny("qwen2", bits=8, mode="mxfp8")
    dequantize(same, mx.float32)
    with caplog.at_level(logging.INFO):
        pack_products(model, tied_head=True)
    assert caplog.messages == ["mxfp8 cannot be held as integers with scales: those layers are unpacked to float32"]
    assert mx.allclose(logits(model), logits(same), atol=1e-5).item()


def test_packing_at_load_leaves_alone_what_the_architecture_does() -> None:
    model = build("kimi_k3")
    quantize(model, 4)
    packed = {name.rpartition(".")[2] for name, module in model.named_modules() if "scales" in module}
    assert "o_proj" in packed
    assert not packed & {"gate", "self_attention_res_proj", "mlp_res_proj", "embed_q", "unembed_out"}


@pytest.mark.parametrize("bits", [8, 4])
def test_an_unquantized_model_is_packed_when_asked(bits: int, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "model", "qwen2", tokenizer=False)
    shard, plain = (load_shard(path, range, pack=pack) for pack in (bits, None))
    assert shard.policy.name == f"float32, packed to {bits} bits"
    assert plain.policy.name == "float32"
    assert isinstance(shard.stage.model.layers[0].mlp, KernelMlp)
    ours, exact = (stage.forward(TOKENS, stage.new_cache())[0] for stage in (shard.stage, plain.stage))
    agreement = mx.sum(ours * exact) / mx.sqrt(mx.sum(ours**2) * mx.sum(exact**2))
    assert agreement.item() > {8: 0.999, 4: 0.8}[bits]
