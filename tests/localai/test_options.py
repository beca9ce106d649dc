"""What a model's YAML can say, and what is said back when it makes no sense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chorus.localai.errors import LoadFailed, in_options
from chorus.localai.options import parse_options, typed
from chorus.localai.plan import LoadPlan, plan_load
from chorus.messages.proto import localai_pb2 as wire


def plan(
    folder: Path, *options: str, environment: dict[str, str] | None = None, flags: Any = None, **fields: Any
) -> LoadPlan:
    request = wire.ModelOptions(**{"Model": "some/model", **fields}, Options=options)
    return plan_load(request, flags or {}, environment or {}, folder)


def refused(folder: Path, *options: str, **more: Any) -> str:
    with pytest.raises(LoadFailed) as caught:
        plan(folder, *options, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def hostfile(folder: Path, ranks: int, name: str = "hosts.json") -> Path:
    file = folder / name
    file.write_text(json.dumps([f"127.0.0.1:{5555 + rank}" for rank in range(ranks)]))
    return file


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("False", False), ("7", 7), ("-1", -1), ("0.5", 0.5), ("1e-3", 0.001), ("7b", "7b"), ("", "")],
)
def test_values_are_bool_int_float_or_text_in_this_order(text: str, value: object) -> None:
    assert typed(text) == value
    assert type(typed(text)) is type(value)


def test_an_option_is_split_at_its_first_colon(tmp_path: Path) -> None:
    chosen = plan(tmp_path, "coordinator:10.0.0.1:5555", "eos_token:<|a:b|>")
    assert chosen.settings.cluster.coordinator == "10.0.0.1:5555"
    assert chosen.special_tokens == {"eos_token": "<|a:b|>"}


def test_sampling_options_are_read(tmp_path: Path) -> None:
    options = parse_options(["temp:0.3", "top_p:0.9", "top_k:40", "seed:7", "max_tokens:99", "xtc_probability:0.1"])
    sampling = options.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.3, 0.9, 40)
    assert (sampling.seed, sampling.max_tokens, sampling.xtc_probability) == (7, 99, 0.1)
    assert options.notes == ()


def test_unknown_options_are_ignored_and_noted(tmp_path: Path) -> None:
    chosen = plan(tmp_path, "gpu_layers:99", "n_ubatch:10", "distributed_backed:ring")
    assert [note.split(" is ignored")[0] for note in chosen.notes[:2]] == ["option gpu_layers", "option n_ubatch"]
    assert "did you mean distributed_backend?" in chosen.notes[2]


@pytest.mark.parametrize("option", ["hostfile", "use_jinja", ":5", ""])
def test_an_option_without_a_key_and_a_colon_is_skipped_and_noted(tmp_path: Path, option: str) -> None:
    """As upstream's backend skips it."""
    chosen = plan(tmp_path, option, "top_k:7")
    assert chosen.sampling.top_k == 7
    assert chosen.notes == (f"option {option!r} is skipped: options are key:value, e.g. max_tokens:256",)


def test_every_option_of_upstreams_backend_is_taken(tmp_path: Path) -> None:
    """Those that its LoadModel and _build_generation_params read."""
    chosen = plan(
        tmp_path,
        f"hostfile:{hostfile(tmp_path, 2)}",
        "distributed_backend:ring",
        *(f"{name}_token:<{name}>" for name in ("eos", "pad", "bos", "unk", "sep", "cls", "mask")),
        *("max_cache_entries:10", "max_kv_size:2048", "max_tokens:128", "temp:0.5", "temperature:0.7", "top_p:0.9"),
        *("min_p:0.05", "top_k:40", "xtc_threshold:0.1", "xtc_probability:0.2", "repetition_penalty:1.1"),
        *("presence_penalty:0.5", "frequency_penalty:0.25", "seed:42"),
    )
    assert chosen.notes == ()
    settings, sampling = chosen.settings, chosen.sampling
    assert (settings.engine.transport, settings.engine.context, settings.cache.max_entries) == ("ring", 2048, 10)
    assert len(chosen.special_tokens) == 7
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.min_p) == (128, 0.7, 0.9, 0.05)
    assert (sampling.top_k, sampling.xtc_threshold, sampling.xtc_probability) == (40, 0.1, 0.2)
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.1, 0.5, 0.25)
    assert sampling.seed == 42


def test_values_that_mean_off_elsewhere_mean_it_here(tmp_path: Path) -> None:
    off = ("top_p:0", "repetition_penalty:0.0", "seed:-1", "max_tokens:0", "top_k:0", "min_p:0", "trust_remote_code:0")
    sampling = plan(tmp_path, *off).sampling
    assert (sampling.top_p, sampling.repetition_penalty, sampling.seed, sampling.max_tokens) == (1, 1, 0, None)
    assert (sampling.top_k, sampling.min_p) == (0, 0)
    assert not plan(tmp_path, "max_cache_entries:0").settings.cache.enabled


def test_what_localai_writes_for_other_backends_is_answered_with_why_it_does_nothing(tmp_path: Path) -> None:
    written = ("tool_parser:granite4", "reasoning_parser:granite", "parallel:4", "cache_reuse:256")
    notes = plan(tmp_path, *written).notes
    assert [note.split(":")[0] for note in notes] == [f"option {each.split(':')[0]} is ignored" for each in written]
    assert "chat template" in notes[0]
    assert "max_batch" in notes[2]
    for known in ("qwen3_xml", "hermes", "llama3_json", "openai"):
        chosen = plan(tmp_path, f"tool_parser:{known}")
        assert (chosen.settings.api.tool_parser, chosen.notes) == (known, ())


def test_fields_for_other_backends_are_used_or_answered_with_why_not(tmp_path: Path) -> None:
    used = plan(tmp_path, DType="half", GPUMemoryUtilization=0.9).settings.engine
    assert (used.dtype, used.memory_fraction) == ("float16", 0.9)
    with pytest.raises(LoadFailed, match=r"engine\.dtype"):
        plan(tmp_path, DType="fp8")
    notes = plan(tmp_path, MMProj="mmproj.gguf", RopeFreqBase=1e6, Overrides=["a=int:1"]).notes
    assert [note.split(" is ignored")[0] for note in notes] == ["mmproj", "rope_freq_base", "overrides"]


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("temperature:hot", "option temperature"),
        ("temperature:true", "option temperature"),
        ("top_p:-0.5", "option top_p"),
        ("top_k:1.5", "option top_k"),
        ("split:20,x", "option split"),
        ("split:0,30", "option split"),
        ("distributed_backend:carrier-pigeon", "option distributed_backend"),
        ("parallel:sideways", "option parallel"),
        ("strategy:hope", "option strategy"),
        ("trust_remote_code:maybe", "option trust_remote_code"),
        ("hostfile:", "option hostfile"),
        ("max_kv_size:-1", "option max_kv_size"),
        ("max_cache_entries:-1", "option max_cache_entries"),
        ("tool_parser:", "option tool_parser"),
    ],
)
def test_a_malformed_option_is_named(tmp_path: Path, option: str, named: str) -> None:
    with pytest.raises(LoadFailed) as caught:
        plan(tmp_path, option)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_hostfile_it_is_one_node(tmp_path: Path) -> None:
    chosen = plan(tmp_path)
    assert chosen.ranks == ()
    assert chosen.settings.engine.ranks == 1


def test_a_hostfile_gives_the_ranks_in_order(tmp_path: Path) -> None:
    chosen = plan(tmp_path, f"hostfile:{hostfile(tmp_path, 3)}", "split:20,7,3")
    assert chosen.ranks == ("127.0.0.1:5555", "127.0.0.1:5556", "127.0.0.1:5557")
    assert chosen.settings.engine.split == (20, 7, 3)


def test_options_win_over_flags_and_flags_over_the_environment(tmp_path: Path) -> None:
    files = [hostfile(tmp_path, ranks, f"{ranks}.json") for ranks in (2, 3, 4)]
    environment = {"MLX_DISTRIBUTED_HOSTFILE": str(files[0]), "MLX_DISTRIBUTED_BACKEND": "grpc"}
    assert len(plan(tmp_path, environment=environment).ranks) == 2
    flags = {"cluster": {"hostfile": str(files[1])}, "engine": {"transport": "ring"}}
    by_flag = plan(tmp_path, environment=environment, flags=flags)
    assert (len(by_flag.ranks), by_flag.settings.engine.transport) == (3, "ring")
    by_option = plan(tmp_path, f"hostfile:{files[2]}", "transport:grpc", environment=environment, flags=flags)
    assert (len(by_option.ranks), by_option.settings.engine.transport) == (4, "grpc")


def test_jaccl_means_tensor_parallel_unless_told_otherwise(tmp_path: Path) -> None:
    cables = [{"ips": ["127.0.0.1:5555"], "rdma": [None, "a"]}, {"ips": ["127.0.0.1:5556"], "rdma": ["a", None]}]
    (tmp_path / "cables.json").write_text(json.dumps(cables))
    file = f"hostfile:{tmp_path}/cables.json"
    assert plan(tmp_path, file, "distributed_backend:jaccl").settings.engine.served_parallel == "tensor"
    assert plan(tmp_path, file, "distributed_backend:ring").settings.engine.served_parallel == "pipeline"
    chosen = plan(tmp_path, file, "distributed_backend:jaccl", "parallel:pipeline")
    assert chosen.settings.engine.parallel == "pipeline"


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        (["trust_remote_code:true"], {}),
        ([], {"TrustRemoteCode": True}),
        ([], {"EngineArgs": '{"trust_remote_code": true}'}),
    ],
)
def test_a_request_alone_lets_no_model_run_its_own_code(
    tmp_path: Path, options: list[str], fields: dict[str, object]
) -> None:
    """Whoever reaches the backend could ask for it; whoever started the backend decides."""
    asked = wire.ModelOptions(Model="m", Options=options, **fields)
    refused = plan_load(asked, {}, {}, tmp_path)
    assert not refused.settings.engine.trust_remote_code
    assert "--trust-remote-code" in " ".join(refused.notes)
    assert plan_load(asked, {}, {}, tmp_path, trust_remote_code=True).settings.engine.trust_remote_code
    unasked = plan_load(wire.ModelOptions(Model="m"), {}, {}, tmp_path, trust_remote_code=True)
    assert not unasked.settings.engine.trust_remote_code


def test_fields_of_the_request_are_used_and_options_go_over_them(tmp_path: Path) -> None:
    chosen = plan(tmp_path, ContextSize=4096, MaxModelLen=2048, TrustRemoteCode=True, EngineArgs='{"max_batch": 8}')
    engine = chosen.settings.engine
    assert (engine.context, engine.max_batch) == (2048, 8)
    assert plan(tmp_path, "max_kv_size:512", ContextSize=4096).settings.engine.context == 512
    assert plan(tmp_path, TensorParallelSize=2).settings.engine.ranks == 2
    assert plan(tmp_path, TensorParallelSize=2).settings.engine.parallel == "tensor"


@pytest.mark.parametrize("context", [0, -1, 4096])
def test_a_context_that_the_model_file_does_not_give_is_the_models_own(tmp_path: Path, context: int) -> None:
    """LocalAI sends 4096 where a model's file has no context_size; older ones send what is there, -1 for the most."""
    assert plan(tmp_path, ContextSize=context).settings.engine.context is None
    elsewhere = {"CHORUS_ENGINE__CONTEXT": "512"}
    assert plan(tmp_path, ContextSize=context, environment=elsewhere).settings.engine.context == 512
    for option in ("context:4096", "context_size:4096", "max_kv_size:4096"):
        assert plan(tmp_path, option, ContextSize=context).settings.engine.context == 4096
    assert plan(tmp_path, ContextSize=context, MaxModelLen=4096).settings.engine.context == 4096
    assert plan(tmp_path, ContextSize=context, EngineArgs='{"context": 4096}').settings.engine.context == 4096


def test_the_cache_is_set_by_options(tmp_path: Path) -> None:
    options = ("max_cache_entries:10", "cache_memory:6GB", "cache_disk:20GB", "prompt_cache:false")
    cache = plan(tmp_path, *options).settings.cache
    assert (cache.max_entries, cache.memory, cache.disk, cache.enabled) == (10, 6 * 10**9, 20 * 10**9, False)
    with pytest.raises(LoadFailed, match=r"option cache_disk: must be a number of bytes"):
        plan(tmp_path, "cache_disk:much")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"LoraAdapter": "adapter.bin"}, "lora_adapter 'adapter.bin' is not supported"),
        ({"LoraAdapters": ["a", "b"]}, "lora_adapters 'a, b' is not supported"),
        ({"DraftModel": "small/model"}, "draft_model 'small/model' is not supported"),
        ({"EngineArgs": "{not json"}, "EngineArgs"),
        ({"EngineArgs": "[1]"}, "EngineArgs"),
        ({"EngineArgs": '{"max_batches": 8}'}, r"model's file: engine\.max_batches: no such setting; did you mean"),
        ({"Model": ""}, "Model is empty"),
        ({"MaxModelLen": -1}, "MaxModelLen"),
    ],
)
def test_a_field_that_cannot_be_served_is_refused_by_name(tmp_path: Path, fields: dict[str, Any], named: str) -> None:
    with pytest.raises(LoadFailed, match=named):
        plan(tmp_path, **fields)


def test_a_strategy_that_needs_figures_says_what_to_give_instead(tmp_path: Path) -> None:
    file = f"hostfile:{hostfile(tmp_path, 2)}"
    (note,) = plan(tmp_path, file, "strategy:memory_proportional").notes
    assert "give it as option split" in note
    assert plan(tmp_path, file, "strategy:uniform").notes == ()
    assert plan(tmp_path, file, "strategy:custom", "split:20,10").notes == ()
    with pytest.raises(LoadFailed, match="custom"):
        plan(tmp_path, file, "strategy:custom")


def test_a_hostfile_that_is_missing_or_malformed_is_named_with_what_it_is(tmp_path: Path) -> None:
    assert refused(tmp_path, "hostfile:/etc/nowhere.json") == (
        "option hostfile: /etc/nowhere.json: cannot be read: No such file or directory; it lists the addresses of all "
        'ranks: ["192.168.1.10:5555", "192.168.1.11:5555"]'
    )
    by_flag = refused(tmp_path, flags={"cluster": {"hostfile": "/etc/nowhere.json"}})
    assert by_flag.startswith("--hostfile: /etc/nowhere.json: cannot be read")
    (tmp_path / "bad.json").write_text("[oops")
    assert "bad.json: line 1, column 2: no JSON here" in refused(tmp_path, f"hostfile:{tmp_path}/bad.json")
    (tmp_path / "bad.json").write_text('["127.0.0.1:5555", "no-such-host.invalid:5555"]')
    said = refused(tmp_path, f"hostfile:{tmp_path}/bad.json")
    assert said.startswith(f"hostfile {tmp_path}/bad.json: rank 1: no-such-host.invalid has no IPv4 address")
    assert "check the name" in said


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("ranks:3", "option ranks: expected 2, the number of devices, got 3"),
        ("split:10,10,10", "option split: split 10,10,10 has 3 entries"),
    ],
)
def test_a_hostfile_with_the_wrong_number_of_ranks_is_named(tmp_path: Path, option: str, named: str) -> None:
    file = hostfile(tmp_path, 2)
    said = refused(tmp_path, f"hostfile:{file}", option)
    assert said.startswith(named)
    assert str(file) in said


def test_a_division_without_numbers_says_which_option_gives_them(tmp_path: Path) -> None:
    said = in_options(refused(tmp_path, f"hostfile:{hostfile(tmp_path, 2)}", "strategy:custom"))
    assert said.startswith("option strategy: custom needs")


def test_rdma_without_devices_or_addresses_says_what_to_write(tmp_path: Path) -> None:
    """Upstream's example is the bare matrix of devices; Chorus's ranks meet by addresses."""
    form = '{"ips": ["192.168.1.10:5555"], "rdma": [null, "rdma_en5"]}'
    addresses = refused(tmp_path, f"hostfile:{hostfile(tmp_path, 2)}", "distributed_backend:jaccl")
    assert "jaccl needs the RDMA devices of every rank" in addresses
    assert form in addresses
    (tmp_path / "devices.json").write_text('[[null, "rdma_thunderbolt0"], ["rdma_thunderbolt0", null]]')
    matrix = refused(tmp_path, f"hostfile:{tmp_path}/devices.json", "distributed_backend:jaccl")
    assert matrix.startswith(f"hostfile {tmp_path}/devices.json: rank 0 has RDMA devices and no address")
    assert form.replace("rdma_en5", "rdma_thunderbolt0") in matrix
    (tmp_path / "chorus.yaml").write_text("engine: {transport: jaccl}\ncluster: {hostfile: devices.json}\n")
    assert refused(tmp_path) == matrix


def test_a_flag_in_a_message_is_told_as_the_option_that_it_is() -> None:
    told = "nccl cannot pass activations from stage to stage: use --transport grpc for pipelines, or --split"
    assert in_options(told).endswith("use option transport:grpc for pipelines, or option split")


def test_the_tunnels_of_localais_own_p2p_are_refused_with_what_to_use(tmp_path: Path) -> None:
    file = hostfile(tmp_path, 2, "localai_mlx_hostfile.json")
    with pytest.raises(LoadFailed, match="chorus worker p2p-mlx"):
        plan(tmp_path, environment={"MLX_DISTRIBUTED_HOSTFILE": str(file)})


def test_the_model_is_its_file_where_that_exists_and_else_its_id(tmp_path: Path) -> None:
    file = tmp_path / "weights.gguf"
    assert plan(tmp_path, ModelFile=str(file)).model == "some/model"
    file.touch()
    chosen = plan(tmp_path, ModelFile=str(file))
    assert chosen.model == str(file)
    assert chosen.identity == "some/model"
