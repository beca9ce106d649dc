"""Settings from every form that people already have: each loads to the tree in golden/, each broken one says why."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from dotenv import dotenv_values
from hypothesis import given
from hypothesis import strategies as st

from chorus.config.file import ConfigError
from chorus.config.older_projects import MEANINGLESS, RENAMED
from chorus.config.settings import known_keys
from chorus.config.sources import LoadedSettings, find_device, load, load_settings, use_cache_dir
from chorus.config.variables import BESIDE_SETTINGS, BETWEEN_PROCESSES, strays
from chorus.deploy.ssh.cluster import SshCluster, told_settings
from chorus.models import resolve
from tests.support.tiny_model import write_tiny_model

HERE = Path(__file__).parent
GOLDEN = sorted(path for path in (HERE / "golden").iterdir() if not path.name.endswith(".tree.json"))
BROKEN = {
    "a_word.yaml": "expected a mapping of settings at the top, got a str",
    "backend_unknown.json": "backend: expected one of any, auto, grpc, ring, mpi, nccl, jaccl, jaccl-ring, got 'gloo'",
    "capability_unknown.yaml": "devices[0].capabilities.memory: no such setting; did you mean memory_gb?",
    "custom_without_shares.yaml": "sharding.strategy: custom needs sharding.custom_proportions or sharding.layers; "
    "expected one of them",
    "device_without_hostname.yaml": "devices[0].hostname: missing; expected a value",
    "device_without_id.yaml": "devices[0].device_id: missing; expected a value",
    "envs_without_value.json": "envs[0]: expected NAME=VALUE, got 'MLX_METAL_FAST_SYNCH'",
    "host_port_is_a_word.json": "[1][0]: expected a port from 1 to 65535 after the colon, got '10.0.0.2:http'",
    "host_unknown_key.json": "hosts[0].ip: no such key, did you mean ips?; expected ssh, ips, rdma",
    "host_unreachable.json": "[0]: expected ssh or ips, so that the host can be reached",
    "hostfile_missing.yaml": "cluster.hostfile: {folder}/nowhere.json: cannot be read: No such file or directory",
    "hosts_empty.json": "hosts: expected a list with at least one host, got []",
    "hosts_of_two_kinds.json": "[1]: expected an address as in the first, got ['10.0.0.2:5000']",
    "layers_and_split_differ.yaml": "sharding.layers: differs from engine.split; expected one of them",
    "layers_are_words.yaml": "sharding.layers: expected numbers of layers like [20, 7, 3], got ['twenty', 'seven']",
    "matrix_diagonal.json": "[0][0]: expected null, a rank's place for itself, got 'rdma_en5'",
    "matrix_not_square.json": "[0]: expected 2 RDMA devices, one per rank, got [None, 'rdma_en5', 'rdma_en4']",
    "memory_negative.yaml": "devices[0].capabilities.memory_gb: should be greater than 0, got -16",
    "model_without_name.yaml": "model.name: expected a folder, a Hugging Face id or a catalog name, got None",
    "not_json.json": "line 1, column {column}: no JSON here: ",
    "not_yaml.yaml": "line 3, column 2: no YAML or JSON here: ",
    "pack_without_products.yaml": "engine.cpu_products: pack 4 is for packed products, and cpu_products is float32: "
    "leave one out",
    "port_is_a_word.yaml": "api.port: should be a valid integer, unable to parse string as an integer, got 'http'",
    "port_too_large.json": "devices[0].port: should be less than or equal to 65535, got 70000",
    "provider_unknown.yaml": "model.provider: expected one of huggingface, hf, mlx-community, local, catalog, "
    "got 'ollama'",
    "ranks_and_devices_differ.yaml": "engine.ranks: expected 1, the number of devices, got 3",
    "role_unknown.json": "devices[0].role: should be 'coordinator' or 'worker', got 'master'",
    "same_address_twice.json": "hosts: 10.0.0.1:5000 is given 2 times; expected a port for each rank",
    "same_device_twice.yaml": "devices: device_id a is given 2 times; expected each once",
    "section_is_a_number.yaml": "api: expected a mapping of settings, got 8100",
    "shares_do_not_add_up.yaml": "sharding.custom_proportions: the proportions must add up to 1 and add up to 1.1, "
    "got [0.7, 0.4]",
    "shares_for_other_devices.yaml": "sharding.custom_proportions: custom_proportions 0.5,0.3,0.2 has 3 entries, and "
    "devices lists 2 hosts: give one for each, rank 0 first",
    "split_for_other_ranks.yaml": "engine.split: split 20,7,3 has 3 entries for 2 ranks",
    "strategy_unknown.yaml": "sharding.strategy: should be 'auto', 'balanced', 'uniform', 'memory_proportional', "
    "'compute_proportional' or 'custom', got 'fastest'",
    "twice.yaml": "no YAML or JSON here: api is given twice, again in line 3",
    "two_coordinators.json": "devices: role: a and b are coordinators; expected one",
    "unknown_section.yaml": "shardin: no such setting; did you mean sharding?",
    "unknown_setting.yaml": "engine.transprot: no such setting; did you mean engine.transport?",
}


def load_golden(path: Path) -> LoadedSettings:
    if path.suffix == ".env":
        variables = {key: value for key, value in dotenv_values(path).items() if value is not None}
        return load(environment=variables, folder=path.parent)
    return load(path, environment={}, folder=path.parent)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_a_form_in_use_loads_to_its_tree(path: Path) -> None:
    loaded = load_golden(path)
    tree = loaded.settings.model_dump(mode="json", exclude_defaults=True)
    if "hostfile" in tree.get("cluster", {}):
        tree["cluster"]["hostfile"] = Path(tree["cluster"]["hostfile"]).name
    expected = json.loads((HERE / "golden" / f"{path.name}.tree.json").read_text())
    assert {"settings": tree, "warnings": list(loaded.warnings)} == expected


@pytest.mark.parametrize("name", [path.name for path in sorted((HERE / "broken").iterdir())])
def test_a_broken_file_gives_one_line_with_file_key_and_expectation(name: str) -> None:
    file = HERE / "broken" / name
    with pytest.raises(ConfigError) as caught:
        load(file, environment={}, folder=file.parent)
    message = str(caught.value)
    assert "\n" not in message
    # Python words its complaint about JSON differently from version to version.
    expected = BROKEN[name].format(folder=file.parent, column=message.partition("column ")[2].partition(":")[0])
    assert message.startswith(f"{file}: {expected}")
    if not expected.endswith(": "):
        assert message == f"{file}: {expected}"


def test_at_least_25_broken_files_are_tried() -> None:
    assert len(BROKEN) >= 25


@pytest.mark.parametrize("path", [path for path in GOLDEN if path.suffix == ".env"], ids=lambda path: path.name)
def test_the_same_variables_work_from_a_dotenv_file(path: Path, tmp_path: Path) -> None:
    for file in GOLDEN:
        shutil.copy(file, tmp_path)
    shutil.copy(path, tmp_path / ".env")
    assert load(environment={}, folder=tmp_path).settings == load_golden(path).settings


def test_each_source_goes_over_the_one_below_it(tmp_path: Path) -> None:
    (tmp_path / "chorus.yaml").write_text("api: {port: 1, host: file, max_tokens: 5, request_timeout_seconds: 9}\n")
    (tmp_path / ".env").write_text("API_PORT=2\nCHORUS_API__HOST=dotenv\nDEFAULT_MAX_TOKENS=6\n")
    loaded = load(
        overrides={"api": {"port": 4, "host": None}},
        environment={"API_PORT": "3", "API_HOST": "environment"},
        folder=tmp_path,
    )
    api, origins = loaded.settings.api, loaded.origins
    assert (api.port, api.host, api.max_tokens, api.request_timeout_seconds) == (4, "environment", 6, 9)
    assert origins["api.port"] == "command line"
    assert origins["api.host"] == "environment: API_HOST"
    assert origins["api.max_tokens"] == ".env: DEFAULT_MAX_TOKENS"
    assert origins["api.request_timeout_seconds"] == str(tmp_path / "chorus.yaml")
    assert origins["log.level"] == "default"


def test_every_setting_has_an_origin(tmp_path: Path) -> None:
    assert set(load(environment={}, folder=tmp_path).origins) == set(known_keys())


def test_our_own_name_goes_over_an_older_one_in_the_same_place(tmp_path: Path) -> None:
    variables = {"CHORUS_API__PORT": "1", "API_PORT": "2"}
    assert load_settings(environment=variables, folder=tmp_path).api.port == 1


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"API_PORT": "http"}, "environment: API_PORT: should be a valid integer, unable to parse"),
        ({"NUM_DEVICES": "0"}, "environment: NUM_DEVICES: should be greater than or equal to 1, got '0'"),
        ({"DISTRIBUTED_BACKEND": "gloo"}, "environment: DISTRIBUTED_BACKEND: should be 'auto', 'grpc', 'ring'"),
        ({"MLX_DISTRIBUTED_HOSTFILE": "no.json"}, "environment: MLX_DISTRIBUTED_HOSTFILE: "),
        ({"WORKER_HOSTS": "a,b", "WORKER_SSH": "x@a"}, "environment: WORKER_SSH: expected one login for each of the 2"),
        ({"WORKER_HOSTS": "a:http"}, "environment: WORKER_HOSTS: expected a port from 1 to 65535 after the colon"),
        ({"WORKER_HOSTS": "a", "NUM_DEVICES": "5"}, "environment: NUM_DEVICES: expected 2, the number of devices, got"),
        ({"MINIMAX_PIPELINE_SPLIT": "22,x"}, "environment: MINIMAX_PIPELINE_SPLIT: must be numbers separated"),
        ({"MINIMAX_PIPELINE_SPLIT": "22,0"}, "environment: MINIMAX_PIPELINE_SPLIT: split 22,0: every rank needs"),
        (
            {"CHORUS_WATCH__SILENCE_SECONDS": "1"},
            "environment: CHORUS_WATCH__SILENCE_SECONDS: watch.silence_seconds must be 0 (never) or at least 1.5, "
            "since watch.tick_seconds is 0.5",
        ),
        (
            {"CHORUS_WATCH__TICK_SECONDS": "2"},
            "environment: CHORUS_WATCH__TICK_SECONDS: watch.silence_seconds must be 0 (never) or at least 6, since "
            "watch.tick_seconds is 2",
        ),
        ({"CHORUS_WATCH__LEASE_SECONDS": "0"}, "environment: CHORUS_WATCH__LEASE_SECONDS: watch.lease_seconds must be"),
    ],
)
def test_a_wrong_variable_is_named(variables: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environment=variables, folder=tmp_path)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["https://me:s3cret@there", "https://there/otlp?key=s3cret", "http://a#s3cret"])
def test_credentials_in_a_collectors_address_are_refused_and_not_shown(endpoint: str, tmp_path: Path) -> None:
    file = tmp_path / "chorus.yaml"
    file.write_text(json.dumps({"telemetry": {"otlp_endpoint": endpoint}}))
    (tmp_path / "elsewhere").mkdir()
    variables = {"CHORUS_TELEMETRY__OTLP_ENDPOINT": endpoint}
    for folder, environment in ((tmp_path, {}), (tmp_path / "elsewhere", variables)):
        with pytest.raises(ConfigError, match="credentials go into OTEL_EXPORTER_OTLP_HEADERS") as caught:
            load(environment=environment, folder=folder)
        assert "s3cret" not in str(caught.value)
    variables = {"CHORUS_TELEMETRY__OTLP_ENDPOINT": "https://there:4318/otlp"}
    plain = load(environment=variables, folder=tmp_path / "elsewhere").settings.telemetry
    assert plain.otlp_endpoint == "https://there:4318/otlp"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("CHORUS_API__PRT", "; did you mean CHORUS_API__PORT?"),
        ("CHORUS_API_PORT", "; did you mean CHORUS_API__PORT?"),
        ("CHORUS_ENGINE_RANKS", "; did you mean CHORUS_ENGINE__RANKS?"),
        ("CHORUS_TOKN", "; did you mean CHORUS_TOKEN?"),
        ("CHORUS_COLOUR_OF_THE_BOX", ""),
    ],
)
def test_an_unknown_variable_is_a_warning_with_the_nearest_name(name: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"{name}=1\n")
    (warning,) = load(environment={}, folder=tmp_path).warnings
    assert warning == f".env: {name} has no effect: there is no such setting{hint}"
    assert strays({name: "1"}, "environment") == [warning.replace(".env", "environment", 1)]


def test_variables_of_ours_that_are_no_settings_are_not_warned_about() -> None:
    sources = "\n".join(file.read_text() for file in (HERE.parents[1] / "src" / "chorus").rglob("*.py"))
    used = set(re.findall(r'"(CHORUS_[A-Z_]+)"', sources))
    assert used >= BETWEEN_PROCESSES
    assert strays(dict.fromkeys(used | BESIDE_SETTINGS, "1"), "environment") == []


def test_an_empty_variable_is_not_given(tmp_path: Path) -> None:
    assert load_settings(environment={"API_PORT": "", "CHORUS_API__HOST": " "}, folder=tmp_path).api.port == 8100


def test_devices_of_a_higher_source_are_not_held_to_the_ranks_of_a_lower_one(tmp_path: Path) -> None:
    (tmp_path / "chorus.yaml").write_text((HERE / "golden" / "devices_exact_layers.yaml").read_text())
    loaded = load(environment={"WORKER_HOSTS": "10.0.0.9"}, folder=tmp_path)
    settings = loaded.settings
    assert any("sharding.layers has no effect: it is for the devices of" in told for told in loaded.warnings)
    assert [device.device_id for device in settings.devices] == ["localhost", "10.0.0.9"]
    assert settings.engine.ranks == 2
    assert settings.engine.split is None


def test_a_split_on_the_command_line_goes_over_proportions_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "chorus.yaml").write_text("sharding: {custom_proportions: [0.7, 0.3]}\n")
    settings = load_settings(overrides={"engine": {"split": "8,2"}}, environment={}, folder=tmp_path)
    assert (settings.engine.split, settings.sharding.custom_proportions) == ((8, 2), None)


def test_two_ways_of_dividing_in_one_file_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "chorus.yaml"
    file.write_text("engine: {split: [8, 2]}\nsharding: {custom_proportions: [0.7, 0.3]}\n")
    with pytest.raises(ConfigError, match=r"custom_proportions: engine\.split divides the model too; expected one of"):
        load(file, environment={}, folder=tmp_path)
    file.write_text("engine: {split: [8, 2]}\nsharding: {strategy: uniform}\n")
    (warning,) = load(file, environment={}, folder=tmp_path).warnings
    assert warning.endswith("sharding.strategy has no effect: engine.split says what each rank holds")


COORDINATOR_LAST = """
devices:
  - {device_id: small, hostname: x, rdma: [null, [s2m], s2b]}
  - {device_id: middle, hostname: y, rdma: [[m2s], null, m2b]}
  - {device_id: big, hostname: z, role: coordinator, rdma: [b2s, b2m, null]}
"""


@pytest.mark.parametrize(
    ("beside", "key", "expected"),
    [
        ("engine: {split: [3, 7, 20]}", "engine.split", (20, 3, 7)),
        ('engine: {split: "3,7,20"}', "engine.split", (20, 3, 7)),
        ("sharding: {strategy: custom, layers: [3, 7, 20]}", "engine.split", (20, 3, 7)),
        ("engine: {weights: [1, 2, 5], parallel: tensor}", "engine.weights", (5, 1, 2)),
        ("sharding: {custom_proportions: [0.1, 0.2, 0.7]}", "sharding.custom_proportions", (0.7, 0.1, 0.2)),
    ],
)
def test_the_coordinator_leads_wherever_it_is_listed_and_each_device_keeps_its_share(
    beside: str, key: str, expected: tuple[float, ...], tmp_path: Path
) -> None:
    """Who writes role: coordinator at the second or third device expects the API and rank 0 there."""
    file = tmp_path / "distributed_config.yaml"
    file.write_text(COORDINATOR_LAST + beside)
    loaded = load(file, environment={}, folder=tmp_path)
    section, _, name = key.partition(".")
    assert [device.device_id for device in loaded.settings.devices] == ["big", "small", "middle"]
    assert getattr(getattr(loaded.settings, section), name) == expected
    assert loaded.settings.rdma_devices == ((None, "b2s", "b2m"), ("s2b", None, ("s2m",)), ("m2b", ("m2s",), None))
    told = f"{file}: devices: big is the coordinator and leads as rank 0; the ranks are big, small, middle"
    assert loaded.warnings == (told,)


def test_a_split_from_elsewhere_is_in_the_order_of_ranks(tmp_path: Path) -> None:
    file = tmp_path / "distributed_config.yaml"
    file.write_text(COORDINATOR_LAST)
    settings = load(file, {"engine": {"split": "20,3,7"}}, {}, tmp_path).settings
    assert settings.engine.split == (20, 3, 7)


def test_up_starts_the_api_at_the_coordinator(tmp_path: Path) -> None:
    file, told = tmp_path / "distributed_config.yaml", tmp_path / "config.json"
    file.write_text(COORDINATOR_LAST + "sharding: {custom_proportions: [0.1, 0.2, 0.7]}")
    settings = load(file, environment={}, folder=tmp_path).settings
    assert [plan.device_id for plan in SshCluster("cluster", settings).plans()] == ["big", "small", "middle"]
    told.write_bytes(told_settings(settings))
    again = load(told, environment={}, folder=tmp_path)
    assert (again.settings, again.warnings) == (settings, ())


def test_a_silence_that_is_longer_than_a_step_may_take_is_warned_about(tmp_path: Path) -> None:
    (warning,) = load(environment={"CHORUS_ENGINE__STEP_TIMEOUT_SECONDS": "2"}, folder=tmp_path).warnings
    assert warning.startswith("watch.silence_seconds is 3 and engine.step_timeout_seconds 2: ")


def test_one_device_is_found_with_its_rank() -> None:
    settings = load_golden(HERE / "golden" / "devices.json").settings
    assert find_device(settings, "mini2") == (1, settings.devices[1])
    with pytest.raises(ConfigError, match=r"no device mini3, did you mean mini2\?; expected one of: studio, mini2"):
        find_device(settings, "mini3")


def test_the_cache_folder_reaches_the_processes_we_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHORUS_CACHE", raising=False)
    use_cache_dir(load_settings(environment={"CHORUS_CACHE": str(tmp_path)}, folder=tmp_path))
    from chorus.platform.storage.paths import cache_dir

    assert cache_dir() == tmp_path


@pytest.mark.parametrize("inside", ["", "hub"])
def test_models_in_somebodys_hugging_face_folder_are_found(
    inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MODEL_CACHE_DIR=/Users/me/.cache/huggingface/hub, or the folder above; what Chorus makes stays elsewhere."""
    for name in ("CHORUS_CACHE", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "elsewhere"))
    repository = tmp_path / "given" / inside / "models--somebody--tiny"
    snapshot = repository / "snapshots" / "0123abc"
    write_tiny_model(snapshot, "llama", vocab_size=512)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abc")
    use_cache_dir(load_settings(environment={"MODEL_CACHE_DIR": str(tmp_path / "given")}, folder=tmp_path))
    assert resolve("somebody/tiny", offline=True).path == snapshot
    assert os.environ["HF_HUB_CACHE"] == str(tmp_path / "given" / inside).rstrip("/")
    assert not (tmp_path / "given" / "models").exists()


def test_variables_of_tensor_parallel_mean_that_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    theirs = {"DISTRIBUTED_BACKEND": "ring", "NUM_DEVICES": "2"}

    def served(**more: str) -> str:
        return load_settings(environment={**theirs, **more}, folder=tmp_path).engine.served_parallel

    assert served() == "tensor"
    assert served(CHORUS_ENGINE__PARALLEL="pipeline") == "pipeline"
    assert served(MINIMAX_PIPELINE_SPLIT="20,10") == "pipeline"
    assert served(NUM_DEVICES="1") == "pipeline"
    first, *_ = load(environment={**theirs, "SOCKET_PATH": "/tmp/mlx_ring.sock"}, folder=tmp_path).warnings
    assert first.endswith("for runs of layers: CHORUS_ENGINE__PARALLEL=pipeline")


@given(key=st.sampled_from(sorted(known_keys())), position=st.integers(0, 40), letter=st.sampled_from("xqz"))
def test_a_slip_in_any_key_suggests_a_known_one(
    key: str, position: int, letter: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    section, _, name = key.rpartition(".")
    place = position % (len(name) + 1)
    slip = name[:place] + letter + name[place:]
    tree = {section: {slip: 1}} if section else {slip: 1}
    with pytest.raises(ConfigError, match="did you mean"):
        load(overrides=tree, environment={}, folder=tmp_path_factory.getbasetemp())


def test_every_setting_and_variable_is_documented() -> None:
    page = (HERE.parents[1] / "docs" / "configuration.md").read_text()
    for name in (*known_keys(), *RENAMED, *MEANINGLESS, "WORKER_HOSTS", "WORKER_SSH"):
        assert f"`{name}`" in page, name


@pytest.mark.parametrize(
    ("name", "text", "key", "value"),
    [
        ("MINIMAX_PIPELINE_SPLIT", "22,8", "engine.split", (22, 8)),
        ("CHORUS_ENGINE__SPLIT", "22,8", "engine.split", (22, 8)),
        ("MAX_SEQUENCE_LENGTH", "1024", "engine.context", 1024),
    ],
)
def test_a_variable_for_ranks_that_is_a_setting_is_read_as_one(
    name: str, text: str, key: str, value: Any, tmp_path: Path
) -> None:
    """`--env MINIMAX_PIPELINE_SPLIT=22,8`, as `mlx.launch` takes it, and the `envs` of its hostfiles."""
    section, _, setting = key.rpartition(".")
    typed = load(environment={}, folder=tmp_path, variables={name: text, "MLX_METAL_FAST_SYNCH": "1"})
    assert getattr(getattr(typed.settings, section), setting) == value
    assert typed.given[key].place == f"--env: {name}"
    file = tmp_path / "hosts.json"
    file.write_text(json.dumps({"hosts": ["a:1", "b:1"], "envs": [f"{name}={text}", "MLX_METAL_FAST_SYNCH=1"]}))
    listed = load(file, environment={}, folder=tmp_path).settings
    assert getattr(getattr(listed, section), setting) == value
    assert listed.cluster.env == {"MLX_METAL_FAST_SYNCH": "1"}


def test_a_flag_goes_over_a_variable_for_ranks_and_that_over_the_environment(tmp_path: Path) -> None:
    variables, environment = {"MAX_SEQUENCE_LENGTH": "2"}, {"MAX_SEQUENCE_LENGTH": "3"}
    settings = load(environment=environment, folder=tmp_path, variables=variables).settings
    assert settings.engine.context == 2
    overrides = {"engine": {"context": 1}}
    assert load(None, overrides, environment, tmp_path, variables).settings.engine.context == 1


def test_a_stray_among_the_variables_for_ranks_is_told(tmp_path: Path) -> None:
    (warning,) = load(environment={}, folder=tmp_path, variables={"CHORUS_ENGINE__SPLT": "22,8"}).warnings
    assert warning.startswith(
        "--env: CHORUS_ENGINE__SPLT has no effect: there is no such setting; did you mean CHORUS_E"
    )
