"""The planner's cost model: what a run of layers costs a node in memory and time. Pure.

Prefill is bound by the matrix rate, decode by reading weights, keys and values; links add latency and bytes. A stage
is first when it begins at layer 0 and last when it ends at the last one, so a table over (first, last) knows where
embedding and head go.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from chorus.planning.facts import ITEM_BYTES, LayerFacts, ModelFacts, Weights
from chorus.platform.accelerator.device import Backend
from chorus.platform.accelerator.dtype import DtypePolicy, Form, choose_dtype

MIB = 1 << 20
CACHE_STEP = 256
"""Key/value arrays grow by so many tokens at a time."""
PACKED_GROUP = 64
"""How many packed keys or values share a scale and an offset; half as many where a head's width asks for it."""
ACTIVATION_WIDTHS = 16
"""Arrays of the hidden width that are alive at once in a forward: a layer's inputs, projections and MLP."""
STATE_BYTES = 4
HANDOVER_SECONDS = 0.002
"""What one more rank costs each step at both ends of its link: reading the step, framing, waking up. Measured with a
model of no size: a few milliseconds of CPU time for each rank beyond the first."""

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Machine:
    """A machine, or a part of one, that can run a rank."""

    name: str
    backend: Backend
    memory: int
    """Bytes that a rank may take there."""
    flops: float
    bandwidth: float
    """Bytes of weights read per second."""
    packed_flops: float | None = None
    """Another rate for MLX's quantized products; None where it is the same."""
    packed_bandwidth: float | None = None
    layer_seconds: float = 0.0
    """What a layer costs however small it is: launching its operations."""
    kernel_flops: float | None = None
    """What a CPU's own kernels do with packed weights (chorus.rank.products); None where there are none."""
    kernel_bandwidth: float | None = None
    kernel_layer_seconds: float | None = None
    """As `layer_seconds`, with the crossings to those kernels and back."""

    @property
    def has_kernels(self) -> bool:
        return self.kernel_bandwidth is not None


@dataclass(frozen=True)
class LinkSpeed:
    """How fast two machines exchange data."""

    latency: float
    bandwidth: float
    all_reduce: float | None = None
    """Seconds of a small sum over all ranks; None where no collective can run."""


METAL_SUM_SECONDS = 0.00036
"""What a sum costs a Mac's GPU besides the sum itself: MLX's collectives run on the CPU, and crossing over takes about
180 µs each way (ml-explore/mlx#4438)."""
LOOPBACK = LinkSpeed(latency=0.0003, bandwidth=2e9, all_reduce=0.0005)
ETHERNET = LinkSpeed(latency=0.0006, bandwidth=110e6, all_reduce=0.0008)


@dataclass(frozen=True)
class Links:
    """How fast every two of some machines exchange data."""

    default: LinkSpeed = ETHERNET
    pairs: tuple[tuple[str, str, LinkSpeed], ...] = ()

    def between(self, one: str, other: str) -> LinkSpeed:
        for left, right, link in self.pairs:
            if {left, right} == {one, other}:
                return link
        return self.default


@dataclass(frozen=True)
class Workload:
    """What the plan is made for: the request whose latency counts, and what memory must be kept for."""

    prompt: int = 512
    output: int = 256
    concurrency: int = 1
    context: int = 8192
    chunk: int = 512
    reserve: int = 512 * MIB
    """Bytes left alone on each rank: the interpreter, the runtime, other programs."""
    dtype: str = "auto"
    cpu_products: str = "auto"
    pack: int | None = None
    """To how many bits CPUs pack weights that are not quantized; None: not at all."""
    kv_bits: int | None = None
    """Keys and values in so many bits; None: in the number type of the weights."""

    @property
    def chunks(self) -> int:
        """Prefill forwards before all concurrent requests have their first token."""
        return max(1, math.ceil(self.prompt / self.chunk)) * self.concurrency

    @property
    def chunk_tokens(self) -> int:
        return math.ceil(self.prompt / max(1, math.ceil(self.prompt / self.chunk)))

    @property
    def cached_tokens(self) -> int:
        """How many tokens the keys and values of a sequence take room for."""
        return math.ceil(self.context / CACHE_STEP) * CACHE_STEP

    @property
    def mean_length(self) -> int:
        return min(self.context, self.prompt + self.output // 2)


@dataclass(frozen=True, eq=False)
class StageTable:
    """What each run of layers [i, j) costs one node. A table is equal only to itself."""

    node: Machine
    policies: tuple[DtypePolicy, DtypePolicy]
    """What is done with the weights where they fit unpacked, and what is done otherwise."""
    unpacked: NDArray[np.bool_]
    weights: Matrix
    cache: Matrix
    activations: Matrix
    need: Matrix
    prefill: Matrix
    """Seconds of one prefill chunk."""
    decode: Matrix
    """Seconds of one decode step."""

    request: Matrix
    """Seconds of a whole request: its first prefill chunk and all its decode steps."""
    costs: tuple[PolicyCosts, PolicyCosts]
    """What is held and read under each of the policies."""

    def policy(self, first: int, last: int) -> DtypePolicy:
        return self.policies[0 if self.unpacked[first, last] else 1]

    @cached_property
    def fits(self) -> NDArray[np.bool_]:
        return self.need <= self.node.memory

    @cached_property
    def request_runs(self) -> Matrix:
        return runs_only(self.request, self.fits)

    @cached_property
    def request_band(self) -> Matrix:
        return band_of(self.request_runs)

    @cached_property
    def prefill_band(self) -> Matrix:
        return band_of(runs_only(self.prefill, self.fits))


@dataclass(frozen=True, eq=False)
class PolicyCosts:
    """Bytes held and read under one dtype policy, over all runs of layers."""

    weights: Matrix
    prefill_read: Matrix
    decode_read: Matrix
    cache: Matrix
    cache_read: Matrix
    item: int


def runs_only(costs: Matrix, allowed: NDArray[np.bool_]) -> Matrix:
    """The costs with infinity wherever a run is empty or not allowed."""
    size = len(costs)
    return np.where(allowed & (np.arange(size)[:, None] < np.arange(size)[None, :]), costs, np.inf)


def band_of(runs: Matrix) -> Matrix:
    """The same by length: at [d - 1, j] the run of d layers that ends before layer j, up to the longest possible.

    A node rarely holds all layers, so this is much less than the whole table.
    """
    size = len(runs)
    starts, ends = np.nonzero(np.isfinite(runs))
    longest = int((ends - starts).max(initial=0))
    end = np.arange(size)[None, :]
    begin = end - np.arange(1, longest + 1)[:, None]
    return np.where(begin >= 0, runs[np.maximum(begin, 0), end], np.inf)


def stage_tables(facts: ModelFacts, nodes: Sequence[Machine], work: Workload) -> list[StageTable]:
    """A table for each node; what depends on the model alone is computed once."""
    known: dict[tuple[str, Form], PolicyCosts] = {}
    effort = model_effort(facts, work)
    return [stage_table(facts, node, work, known, effort) for node in nodes]


def stage_table(
    facts: ModelFacts,
    node: Machine,
    work: Workload,
    known: dict[tuple[str, Form], PolicyCosts] | None = None,
    effort: Effort | None = None,
) -> StageTable:
    policies = policies_of(facts, node, work)
    known = {} if known is None else known
    for policy in policies:
        if (policy.dtype, policy.form) not in known:
            known[policy.dtype, policy.form] = policy_costs(facts, policy, work)
    roomy, tight = (known[policy.dtype, policy.form] for policy in policies)
    effort = effort or model_effort(facts, work)
    activations = _activations(facts, node, roomy.item, work)
    unpacked = roomy.weights + roomy.cache + activations + work.reserve <= node.memory
    times = [
        stage_times(node, effort, costs, speed_of(facts, node, policy))
        for costs, policy in zip((roomy, tight), policies, strict=True)
    ]
    prefill = np.where(unpacked, times[0][0], times[1][0])
    decode = np.where(unpacked, times[0][1], times[1][1])
    weights = np.where(unpacked, roomy.weights, tight.weights)
    cache = np.where(unpacked, roomy.cache, tight.cache)
    return StageTable(
        node=node,
        policies=policies,
        unpacked=unpacked,
        weights=weights,
        cache=cache,
        activations=activations,
        need=weights + cache + activations + work.reserve,
        prefill=prefill,
        decode=decode,
        request=prefill + work.output * decode,
        costs=(roomy, tight),
    )


def policies_of(facts: ModelFacts, node: Machine, work: Workload) -> tuple[DtypePolicy, DtypePolicy]:
    """The loader's own rule, asked twice: with all the room in the world, and with none."""
    total = facts.total
    roomy, tight = (
        choose_dtype(
            node.backend,
            facts.stored_dtype,
            facts.quantized,
            total.stored,
            total.elements * ITEM_BYTES["float32"],
            total.elements * ITEM_BYTES["bfloat16"],
            budget,
            work.dtype,
            work.cpu_products,
            work.pack,
            node.has_kernels,
        )
        for budget in (total.elements * 8, -1)
    )
    return roomy, tight


def activation_item(facts: ModelFacts, policy: DtypePolicy) -> int:
    return ITEM_BYTES[facts.stored_dtype if policy.dtype == "stored" else policy.dtype]


@dataclass(frozen=True)
class Speed:
    """How fast a machine is under a policy."""

    flops: float
    bandwidth: float
    layer_seconds: float


def speed_of(facts: ModelFacts, node: Machine, policy: DtypePolicy) -> Speed:
    if policy.packed:
        seconds = node.layer_seconds if node.kernel_layer_seconds is None else node.kernel_layer_seconds
        return Speed(node.kernel_flops or node.flops, node.kernel_bandwidth or node.bandwidth, seconds)
    quantized = facts.quantized and not policy.dequantize
    flops = (quantized and node.packed_flops) or node.flops
    return Speed(flops, (quantized and node.packed_bandwidth) or node.bandwidth, node.layer_seconds)


def sums_over_runs(values: Sequence[float]) -> Matrix:
    """A matrix that has at [i, j] the sum over layers i to j - 1."""
    ends = np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=np.float64))])
    return ends[None, :] - ends[:, None]


def _with_ends(runs: Matrix, first: float, last: float) -> Matrix:
    runs = runs.copy()
    runs[0, :] += first
    runs[:, -1] += last
    return runs


def _read(layer: LayerFacts, policy: DtypePolicy, tokens: int) -> float:
    whole, routed = layer.weights.read_under(policy), layer.experts.read_under(policy)
    return whole - routed * (1 - layer.read_share(tokens))


def policy_costs(facts: ModelFacts, policy: DtypePolicy, work: Workload) -> PolicyCosts:
    item = activation_item(facts, policy)
    layers, shared = facts.layers, shared_bytes(facts, policy)
    weights = _with_ends(
        sums_over_runs([layer.weights.bytes_under(policy) for layer in layers]) + facts.around.bytes_under(policy),
        facts.embedding.looked_up_under(policy),
        head_bytes(facts, policy) + shared,
    )
    weights[0, -1] -= shared  # one copy where both ends are on one rank
    head = head_weights(facts).read_under(policy)
    kept = _kept_bytes(item, work.kv_bits)
    per_sequence = [
        layer.cache.numbers(work.cached_tokens) * kept + layer.cache.state * (STATE_BYTES - kept) for layer in layers
    ]
    return PolicyCosts(
        weights=weights,
        prefill_read=sums_over_runs([_read(layer, policy, work.chunk_tokens) for layer in layers]),
        decode_read=_with_ends(sums_over_runs([_read(layer, policy, work.concurrency) for layer in layers]), 0, head),
        cache=sums_over_runs(per_sequence) * work.concurrency,
        cache_read=sums_over_runs([layer.cache.numbers(work.mean_length) * kept for layer in layers])
        * work.concurrency,
        item=item,
    )


def _kept_bytes(item: int, bits: int | None) -> float:
    """Of a number among keys and values; packed ones have a scale and an offset for each group."""
    return item if bits is None else bits / 8 + 2 * item / PACKED_GROUP


def shared_bytes(facts: ModelFacts, policy: DtypePolicy) -> int:
    """Of an embedding that a tied head uses again."""
    return facts.tokens.looked_up_under(policy) if facts.tied else 0


def head_bytes(facts: ModelFacts, policy: DtypePolicy) -> int:
    """What a rank that has the head holds for it alone: kernels have a tied one to themselves."""
    own = facts.head.bytes_under(policy)
    return own + facts.tokens.bytes_under(policy) if facts.tied and facts.tokens.in_kernels(policy) else own


def head_weights(facts: ModelFacts) -> Weights:
    return facts.tokens + facts.head if facts.tied else facts.head


def _activations(facts: ModelFacts, node: Machine, item: int, work: Workload) -> Matrix:
    tokens = max(work.chunk_tokens, work.concurrency)
    inside = float(tokens * ACTIVATION_WIDTHS * facts.hidden * item)
    if node.backend == "cpu":
        inside += facts.heads * work.chunk_tokens * work.context * item  # scores are made in full there
    if work.kv_bits is not None:
        # A prompt attends to keys and values that are unpacked for it, one layer at a time.
        inside += max(layer.cache.numbers(work.cached_tokens) for layer in facts.layers) * item
    logits = float(work.concurrency * facts.vocabulary * ITEM_BYTES["float32"] * 2)
    size = len(facts.layers) + 1
    return _with_ends(np.full((size, size), inside), 0, logits)


@dataclass(frozen=True, eq=False)
class Effort:
    """Floating-point operations over all runs of layers, whatever the node."""

    products: Matrix
    """Products of a prefill chunk with the weights."""
    attention: Matrix
    """Products of a prefill chunk with keys and values."""
    step: Matrix
    """Everything in a decode step, head included."""
    layers: Matrix
    """How many layers a run has."""


def model_effort(facts: ModelFacts, work: Workload) -> Effort:
    active = sums_over_runs([2.0 * layer.active_elements for layer in facts.layers])
    layers = sums_over_runs([1.0] * len(facts.layers))
    head = 2.0 * head_weights(facts).elements
    return Effort(
        products=active * work.chunk_tokens,
        attention=4.0 * facts.hidden * work.chunk_tokens * work.prompt / 2 * layers,
        step=_with_ends(active, 0, head) * work.concurrency,
        layers=layers,
    )


def stage_times(node: Machine, effort: Effort, costs: PolicyCosts, speed: Speed) -> tuple[Matrix, Matrix]:
    """Seconds of one prefill chunk and of one decode step."""
    flops, bandwidth, launches = speed.flops, speed.bandwidth, speed.layer_seconds * effort.layers
    prefill = np.maximum(effort.products / flops, costs.prefill_read / bandwidth) + effort.attention / node.flops
    decode = np.maximum(costs.decode_read / bandwidth, effort.step / flops) + costs.cache_read / node.bandwidth
    return prefill + launches, decode + launches


@dataclass(frozen=True)
class Hop:
    """Seconds from one stage to the next, of a prefill chunk and of a decode step."""

    prefill: float
    decode: float


def hop(facts: ModelFacts, link: LinkSpeed, sender: StageTable, work: Workload) -> Hop:
    width = facts.hidden * activation_item(facts, sender.policies[0])
    return Hop(
        HANDOVER_SECONDS + link.latency + work.chunk_tokens * width / link.bandwidth,
        HANDOVER_SECONDS + link.latency + work.concurrency * width / link.bandwidth,
    )


@dataclass(frozen=True)
class Prediction:
    """What the request of a workload will take, in seconds."""

    first_token_seconds: float
    token_seconds: float
    link_seconds: float
    """The part of each token's time that is spent between ranks."""
    request_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """How fast one sequence goes; all concurrent ones together make so many times more."""
        return 1 / self.token_seconds


def predict_pipeline(
    facts: ModelFacts, tables: Sequence[StageTable], links: Links, work: Workload, bounds: Sequence[int]
) -> Prediction:
    """What a pipeline takes. `tables` are in stage order; stage s holds layers bounds[s] to bounds[s + 1] - 1."""
    runs = list(pairwise(bounds))
    prefill = [float(table.prefill[run]) for table, run in zip(tables, runs, strict=True)]
    decode = [float(table.decode[run]) for table, run in zip(tables, runs, strict=True)]
    hops, back = hops_of(facts, tables, links, work)
    slowest = max([*prefill, *(hop.prefill for hop in hops)])
    first_token = sum(prefill) + sum(hop.prefill for hop in hops) + back + (work.chunks - 1) * slowest
    between = sum(hop.decode for hop in hops) + back
    token = sum(decode) + between
    return Prediction(first_token, token, between, first_token + work.output * token)


def hops_of(facts: ModelFacts, tables: Sequence[StageTable], links: Links, work: Workload) -> tuple[list[Hop], float]:
    """The hops between neighbours, and seconds for the way back of a sampled token to the first stage."""
    pairs = list(pairwise(tables))
    hops = [hop(facts, links.between(one.node.name, other.node.name), one, work) for one, other in pairs]
    back = links.between(tables[-1].node.name, tables[0].node.name).latency if pairs else 0.0
    return hops, back
