"""What a Mac says of its memory, and what a plan, a load and the cache may take of it.

The figures of `MACS` were published by owners of such machines; docs/mac.md names them too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chorus.cluster.profile import machine as profiles
from chorus.cluster.profile.machine import node_of, profile
from chorus.cluster.profile.rates import Rates
from chorus.engine.leader import NoFollowers
from chorus.engine.lifecycle import group as groups
from chorus.engine.lifecycle.group import Group
from chorus.engine.scheduling.scheduler import Scheduler, SchedulerLimits, within_memory
from chorus.messages.engine import Request
from chorus.planning.cache_sizes import CacheFacts
from chorus.planning.costs import Links, Workload
from chorus.planning.facts import LayerFacts, ModelFacts, Weights
from chorus.planning.planner import plan
from chorus.platform.memory import amounts, metal
from chorus.platform.memory import mac as mac_memory
from chorus.platform.memory.mac import RESERVE, MacFigures
from chorus.rank.load import LoadError
from chorus.serving.prepare import answer_budget
from tests.support.mac import GIB, PAGE, FakeMetal, play_mac, vm_stat_text

FRACTION = 0.8
MIB = 1 << 20
WARM_UP = 300 * MIB
"""Of activations, after a load."""


@dataclass(frozen=True)
class Mac:
    """One Mac as its owner saw it, and a model that people run on such a machine (4 bits, as mlx-community has it)."""

    gigabytes: int
    working_set: int
    vm_stat: str
    free: int
    """Bytes that a model can have, by the rule."""
    model: str
    weights: int
    layers: int
    numbers_per_token: int
    """Of keys and values in each layer."""
    level: int | None = None

    @property
    def total(self) -> int:
        return self.gigabytes * GIB

    @property
    def cost(self) -> int:
        return self.layers * self.numbers_per_token * 2

    def facts(self) -> ModelFacts:
        packed = self.weights // self.layers * 8 // 9
        scales = self.weights // self.layers - packed
        layer = LayerFacts(
            Weights(packed + scales, packed, scales // 2, packed * 2), CacheFacts(per_token=self.numbers_per_token)
        )
        return ModelFacts(
            name=self.model,
            model_type="llama",
            layers=(layer,) * self.layers,
            embedding=Weights(),
            head=Weights(),
            tied=False,
            tokens=Weights(),
            around=Weights(),
            hidden=2048,
            vocabulary=50_000,
            heads=16,
            groups=8,
            context=32768,
            stored_dtype="bfloat16",
            quantized=True,
        )


MACS = [
    # MacBook, M1, busy: github.com/river3015/my-mini-tools, mac-pulse (vm_stat, with 5 of 6 GB of swap used); its
    # working set: github.com/SceneWorks/SceneWorks/pull/1552 ("~5.3 GB").
    Mac(
        gigabytes=8,
        working_set=8 * GIB * 2 // 3,
        vm_stat=vm_stat_text(
            Pages_free=3846, Pages_wired_down=131904, Anonymous_pages=103795, Pages_occupied_by_compressor=194212
        ),
        free=8 * GIB - (131904 + 103795 + 194212) * PAGE,
        model="Qwen2.5-0.5B",
        weights=278_000_000,
        layers=24,
        numbers_per_token=2 * 2 * 64,
    ),
    # Mac mini, M4, macOS 26.5: github.com/mrinebold/msrHermes, its ENVIRONMENT_REPORT.md (vm_stat); its working set:
    # github.com/exo-explore/exo/pull/1672 (M4, 10.67 GB), llama-cpp-python issue 687 (10922.67 MB).
    Mac(
        gigabytes=16,
        working_set=16 * GIB * 2 // 3,
        vm_stat=vm_stat_text(
            Pages_free=129780,
            Pages_active=281638,
            Pages_inactive=273368,
            Pages_speculative=7622,
            Pages_wired_down=136267,
            Anonymous_pages=344240,
            Pages_occupied_by_compressor=184956,
        ),
        free=16 * GIB - (136267 + 344240 + 184956) * PAGE,
        model="Qwen3-4B",
        weights=2_263_000_000,
        layers=36,
        numbers_per_token=2 * 8 * 128,
    ),
    # Apple silicon, 64 GB, starved: github.com/AndySparks/sourceconvert/pull/25 and its tests (vm_stat, and "57% free"
    # by memory_pressure); its working set: llama.cpp issue 1870 (M1 Max, 49152.00 MiB).
    Mac(
        gigabytes=64,
        working_set=49152 * MIB,
        level=57,
        vm_stat=vm_stat_text(Pages_free=13500, Pages_inactive=1142478, Pages_occupied_by_compressor=1477849),
        free=64 * GIB * 57 // 100,
        model="Qwen3-32B",
        weights=18_430_000_000,
        layers=64,
        numbers_per_token=2 * 8 * 128,
    ),
    # Mac Studio, M3 Ultra, idle: github.com/geerlingguy/sbc-reviews/issues/95 (screenFetch: 1610 MiB wired, active and
    # compressed, counted as 4 KiB pages); its working set: kouhei1970.github.io/qwen-note (Ollama's log, 464.0 GiB).
    Mac(
        gigabytes=512,
        working_set=464 * GIB,
        vm_stat=vm_stat_text(Pages_wired_down=1610 * MIB // 4096, Anonymous_pages=0, Pages_occupied_by_compressor=0),
        free=512 * GIB - 4 * 1610 * MIB,
        model="DeepSeek-R1",
        weights=377_600_000_000,
        layers=61,
        numbers_per_token=576,
    ),
]


@pytest.fixture(params=MACS, ids=lambda mac: f"{mac.gigabytes} GB")
def mac(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mac:
    found: Mac = request.param
    level = {} if found.level is None else {"kern.memorystatus_level": found.level}
    play_mac(monkeypatch, tmp_path, found.total, {"iogpu.wired_limit_mb": 0, **level}, found.vm_stat)
    return found


def measured(working_set: int) -> Rates:
    return Rates("Apple GPU", "bfloat16", working_set, 1e13, 1e11, 1e13, 1e11, 1e-4, ("ring",))


def group_of(mac: Mac, mx: FakeMetal, budget: mac_memory.Budget, monkeypatch: pytest.MonkeyPatch) -> tuple[Group, Any]:
    """A model that one rank has loaded, up to the first prompt, which showed what a token costs."""
    monkeypatch.setattr(groups, "mx", mx)
    mx.active = mac.weights + WARM_UP
    stage = SimpleNamespace(packing=None)
    shard: Any = SimpleNamespace(budget=budget, weight_bytes=mac.weights, vocabulary=0, stage=stage)
    runner = SimpleNamespace(cache_bytes_per_token=mac.cost, state_bytes=0, growing_layers=32)
    return Group(shard, NoFollowers(), True), runner


def test_plan_wired_limit_and_cache_follow_from_what_a_mac_says(mac: Mac, monkeypatch: pytest.MonkeyPatch) -> None:
    mx: Any = FakeMetal(mac.working_set)
    monkeypatch.setattr(profiles, "_rates", lambda threads, refresh: measured(mac.working_set))
    node = node_of(profile(1), "mac", FRACTION)
    made = plan(mac.facts(), [node], Links(), Workload(context=8192))
    assert amounts.available_memory() == mac.free
    assert node.memory == min(int(mac.free * FRACTION), mac.working_set - RESERVE)
    assert made.ranks[0].weight_bytes + made.ranks[0].cache_bytes + RESERVE <= mac.working_set
    assert made.ranks[0].policy_name == "stored"

    budget = amounts.mac_budget(mx, FRACTION, 1)
    assert budget is not None
    assert budget.room == node.memory
    metal.hold(mx, mac.weights, budget)
    assert mx.wired_limits == [min(mac.working_set, budget.room + RESERVE)]
    assert mx.wired_limits[0] <= mac.working_set
    assert mx.cache_limits[0] <= RESERVE // 2

    group, runner = group_of(mac, mx, budget, monkeypatch)
    room = group.room(runner, FRACTION, context=32768)
    left = budget.room - mac.weights - WARM_UP
    tokens = room.tokens
    assert tokens
    assert 0.9 * left < tokens * mac.cost * 33 / 32 <= left
    assert mac.weights + tokens * mac.cost + RESERVE <= mac.working_set
    assert tokens * mac.cost >= made.ranks[0].cache_bytes

    limits = within_memory(SchedulerLimits(context=32768), room)
    scheduler = Scheduler(limits)
    assert scheduler.submit(Request("1:said", (1,) * 1000, 1000)) is None
    unsaid = answer_budget(1000, None, None, limits.context)
    assert scheduler.submit(Request("1:unsaid", (1,) * 1000, unsaid)) is None


def test_a_model_that_leaves_no_room_for_an_ordinary_request_is_refused_with_figures_and_remedy(
    mac: Mac, monkeypatch: pytest.MonkeyPatch
) -> None:
    mx: Any = FakeMetal(mac.working_set)
    budget = mac_memory.Budget(mac.weights + WARM_UP + 2000 * mac.cost, mac.free, mac.working_set)
    group, runner = group_of(mac, mx, budget, monkeypatch)
    with pytest.raises(LoadError, match=r"rank 0 has .* left for keys and values beside .* of weights") as refused:
        group.room(runner, FRACTION, context=32768)
    assert "enough for 2000 tokens; an ordinary request of 2048 takes" in str(refused.value)
    assert "sudo sysctl iogpu.wired_limit_mb" in str(refused.value)
    assert group.room(runner, FRACTION, context=1024).tokens == 1792


def test_a_raised_limit_is_the_working_set_and_more_than_the_machine_is_not() -> None:
    assert mac_memory.working_set(48 * GIB, 60 * GIB) == 60 * GIB
    assert mac_memory.working_set(48 * GIB, 0) == 48 * GIB


def test_ranks_of_one_mac_share_its_working_set() -> None:
    alone = mac_memory.budget(14 * GIB, 10 * GIB, FRACTION)
    half = mac_memory.budget(14 * GIB, 10 * GIB, FRACTION / 2, ranks=2)
    assert (alone.room, half.room) == (8 * GIB, 4 * GIB)


@pytest.mark.parametrize(("gigabytes", "at_most"), [(8, 5.34), (16, 10.67), (32, 21.34), (64, 48.0), (96, 72.0)])
def test_where_metal_was_not_asked_a_working_set_is_assumed_that_no_mac_falls_below(
    gigabytes: int, at_most: float
) -> None:
    """Reported by owners: 5461, 10922, 21845, 49152 and 73728 MiB; newer systems give large Macs more."""
    assert mac_memory.stock_working_set(gigabytes * GIB) <= at_most * GIB


def test_without_its_level_what_no_file_could_give_back_counts_as_taken() -> None:
    mac = MacFigures(16 * GIB, taken=9 * GIB)
    assert mac_memory.free_memory(mac) == 7 * GIB
    assert mac_memory.free_memory(MacFigures(16 * GIB, level=40, taken=9 * GIB)) == 16 * GIB * 40 // 100
    assert mac_memory.free_memory(MacFigures(16 * GIB)) == 8 * GIB
    assert mac_memory.free_memory(MacFigures(GIB, taken=2 * GIB)) == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Mach Virtual Memory Statistics: (page size of 16384 bytes)",
        "Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages wired down: lots.\nAnonymous pages: 1.",
        "Pages wired down: 1.\nAnonymous pages: 1.\nPages occupied by compressor: 1.",
    ],
)
def test_a_vm_stat_that_does_not_say_is_no_figure(text: str) -> None:
    assert mac_memory.pages_taken(text) is None


def test_a_kernel_that_answers_nonsense_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nonsense = {"kern.memorystatus_level": 800, "iogpu.wired_limit_mb": "-1"}
    play_mac(monkeypatch, tmp_path, 16 * GIB, nonsense)
    assert mac_memory.read_figures() == MacFigures(16 * GIB)
    play_mac(monkeypatch, tmp_path, 16 * GIB, {"iogpu.wired_limit_mb": 999_999})
    assert mac_memory.read_figures().raised == 16 * GIB


def test_without_metal_nothing_is_called() -> None:
    bare: Any = SimpleNamespace(metal=SimpleNamespace(is_available=lambda: False), device_info=dict)
    assert metal.held_memory(bare) == 0
    assert amounts.mac_budget(bare, FRACTION, 1) is None
