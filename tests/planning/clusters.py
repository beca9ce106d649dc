"""Random models, machines and links for the planner's tests, and simple ones to read."""

from __future__ import annotations

from hypothesis import strategies as st

from chorus.planning.cache_sizes import CacheFacts
from chorus.planning.costs import Links, LinkSpeed, Machine, Workload
from chorus.planning.facts import LayerFacts, ModelFacts, Weights

GB = 10**9
MB = 10**6
KERNELS = {"kernel_flops": 3e11, "kernel_bandwidth": 4e10, "kernel_layer_seconds": 2e-4}
"""What a CPU adds that multiplies packed weights."""


def bf16(nbytes: int) -> Weights:
    numbers = nbytes // 2
    return Weights(nbytes, 0, numbers, numbers, 4 * numbers, numbers)


def four_bit(elements: int) -> Weights:
    packed, scales = elements // 2, elements // 32
    return Weights(packed + 2 * scales, packed, scales, elements, packed + 8 * scales, scales=scales // 2)


def model(layers: int = 28, layer_bytes: int = 400 * MB, context: int = 32768, model_type: str = "llama") -> ModelFacts:
    layer = LayerFacts(bf16(layer_bytes), CacheFacts(per_token=1024))
    return ModelFacts(
        name="model",
        model_type=model_type,
        layers=(layer,) * layers,
        embedding=bf16(300 * MB),
        head=bf16(300 * MB),
        tied=False,
        tokens=bf16(300 * MB),
        around=Weights(),
        hidden=4096,
        vocabulary=50_000,
        heads=32,
        groups=8,
        context=context,
        stored_dtype="bfloat16",
        quantized=False,
    )


def mac(name: str, gigabytes: float, cores: int) -> Machine:
    return Machine(name, "metal", int(gigabytes * GB), cores * 0.3e12, cores * 12e9)


@st.composite
def models(draw: st.DrawFn, most_layers: int = 10) -> ModelFacts:
    quantized = draw(st.booleans())
    weigh = (lambda count: four_bit(count * MB // 2)) if quantized else (lambda count: bf16(count * MB))
    layers = [
        LayerFacts(
            weigh(draw(st.integers(50, 900))),
            CacheFacts(
                draw(st.integers(0, 4096)),
                draw(st.sampled_from([None, 128, 1024])),
                draw(st.sampled_from([0, 50_000])),
            ),
        )
        for _ in range(draw(st.integers(1, most_layers)))
    ]
    tied = draw(st.booleans())
    embedding = weigh(draw(st.integers(10, 600)))
    return ModelFacts(
        name="model",
        model_type=draw(st.sampled_from(["llama", "rwkv7"])),
        layers=tuple(layers),
        embedding=embedding,
        tokens=embedding,
        head=Weights() if tied else weigh(draw(st.integers(10, 600))),
        tied=tied,
        around=Weights(),
        hidden=2048,
        vocabulary=50_000,
        heads=16,
        groups=draw(st.integers(1, 4)),
        context=32768,
        stored_dtype="bfloat16",
        quantized=quantized,
    )


@st.composite
def clusters(
    draw: st.DrawFn, most_nodes: int = 6, backends: tuple[str, ...] = ("metal", "cuda", "cpu")
) -> list[Machine]:
    return [
        Machine(
            name=f"node{index}",
            backend=draw(st.sampled_from(backends)),  # type: ignore[arg-type]
            memory=draw(st.integers(500, 12_000)) * MB,
            flops=draw(st.integers(100, 20_000)) * 1e9,
            bandwidth=draw(st.integers(10, 800)) * 1e9,
            layer_seconds=draw(st.sampled_from([0.0, 1e-4])),
            **draw(st.sampled_from([{}, KERNELS])),
        )
        for index in range(draw(st.integers(1, most_nodes)))
    ]


LINKS = st.builds(
    LinkSpeed,
    latency=st.floats(1e-5, 5e-3),
    bandwidth=st.floats(1e7, 5e9),
    all_reduce=st.one_of(st.none(), st.floats(1e-5, 3e-3)),
)


@st.composite
def links(draw: st.DrawFn) -> Links:
    pairs = draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), LINKS), max_size=3))
    named = tuple((f"node{one}", f"node{other}", link) for one, other, link in pairs if one != other)
    return Links(draw(LINKS), named)


WORKLOADS = st.builds(
    Workload,
    prompt=st.sampled_from([16, 512, 3000]),
    output=st.sampled_from([1, 256]),
    concurrency=st.sampled_from([1, 8]),
    context=st.sampled_from([512, 4096, 16384]),
    reserve=st.just(100 * MB),
)
