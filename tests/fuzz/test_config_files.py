"""A settings file or hostfile says what is meant, or is refused in one line."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chorus.config.file import ConfigError, read_file
from chorus.config.hostfile import Hostfile, HostfileError, parse_hostfile
from chorus.config.settings import known_keys, sections
from chorus.config.sources import load
from tests.fuzz.foreign import at_most, texts, values

shared_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

addresses = st.sampled_from(
    ["10.0.0.1", "host.local:5000", "[fe80::1]:99999", "::1", ":5", "[", "a b", "x:" + "9" * 5000]
)
hosts = st.fixed_dictionaries(
    {}, optional={"ssh": texts | addresses, "ips": values | st.lists(addresses | values, max_size=3), "rdma": values}
)
entries = addresses | hosts | st.lists(addresses | st.none() | values, max_size=3) | values
hostfiles = st.lists(entries, max_size=4) | st.fixed_dictionaries(
    {"hosts": st.lists(entries, max_size=4) | values}, optional={"backend": values, "envs": values}
)

words = st.sampled_from(
    (
        *(
            "a",
            "b",
            "model",
            "api",
            "port",
            "engine",
            "split",
            "devices",
            "hosts",
            "5",
            "1_0",
            "yes",
            "null",
            "~",
            "0x",
        ),
        *(
            "? ",
            "- ",
            ": ",
            ":",
            "{",
            "}",
            "[",
            "]",
            ",",
            "\n",
            "\n  ",
            "\n    ",
            "\t",
            "#",
            "'",
            '"',
            "|\n",
            ">-\n",
            "<<",
        ),
        *("&a ", "*a", "&b ", "*b", "!!int ", "!!float ", "!!timestamp ", "!!binary ", "!!set ", "!!omap ", "!x "),
        *("!!python/object:os.system ", "---\n", "...\n", "%YAML 9.9\n", "\\", "0b", "-", "@", "`", "\x85", "\ufeff"),
        *("1:60:60", "2001-99-99", "2001-01-01T99:00:00", ".inf", ".nan"),
    )
)
trees = st.dictionaries(
    st.sampled_from([*sections(), *(key for key in known_keys() if "." not in key), "sharding"]) | texts,
    values
    | st.dictionaries(st.sampled_from([key.rpartition(".")[2] for key in known_keys()]) | texts, values, max_size=4),
    max_size=4,
)


def loaded(file: Path, content: str | bytes) -> None:
    """Reads it as a command would; only the documented error may come out."""
    file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    with suppress(ConfigError):
        load(file, environment={}, folder=file.parent)


@given(hostfiles)
def test_a_hostfile_is_read_or_refused(content: object) -> None:
    with suppress(HostfileError):
        read = parse_hostfile(content)
        assert isinstance(read, Hostfile)
        assert all(1 <= host.port <= 65535 for host in read.hosts)


@shared_folder
@given(hostfiles | trees)
def test_json_of_any_values_is_settings_or_refused(tmp_path: Path, content: object) -> None:
    loaded(tmp_path / "chorus.json", json.dumps(content))


@shared_folder
@given(st.lists(words, max_size=30).map("".join))
def test_a_soup_of_yaml_is_settings_or_refused(tmp_path: Path, content: str) -> None:
    loaded(tmp_path / "chorus.yaml", content)


@shared_folder
@given(st.binary(max_size=60))
def test_any_bytes_are_settings_or_refused(tmp_path: Path, content: bytes) -> None:
    loaded(tmp_path / "chorus.yaml", content)


BOMBS = {
    "laughs.yaml": "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30)),
    "hosts.yaml": "hosts: [" + "&a0 [x], " + ", ".join(f"&a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)) + "]",
    "merges.yaml": "- &a0 {x: 1}\n" + "".join(f"- &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 60)),
    "itself.yaml": "model: &a [*a]",
    "deep.yaml": "[" * 100_000,
    "deep.json": '{"model":' * 100_000,
    "long.yaml": "model: " + "x" * 20_000_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_means_far_more_than_it_holds_is_refused(tmp_path: Path, name: str) -> None:
    """Aliases of aliases, values within themselves, nesting without end."""
    file = tmp_path / name
    file.write_text(BOMBS[name])
    with at_most(60), pytest.raises(ConfigError) as refused:
        load(file, environment={}, folder=tmp_path)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


def test_an_alias_of_a_person_is_read(tmp_path: Path) -> None:
    file = tmp_path / "chorus.yaml"
    file.write_text("base: &base {port: 1, host: a}\nagain: [*base, *base]\n")
    base = {"port": 1, "host": "a"}
    assert read_file(file) == {"base": base, "again": [base, base]}


@pytest.mark.parametrize("text", ["!!int x", "!!timestamp x", "2001-99-99", "!!float x", "9" * 5000, "? [a]\n: b"])
def test_yaml_whose_values_cannot_be_made_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "chorus.yaml"
    file.write_text(f"model: {text}")
    with pytest.raises(ConfigError):
        load(file, environment={}, folder=tmp_path)


@pytest.mark.parametrize("name", ["~nobody/hosts", "a\0b", "x" * 5000])
def test_a_hostfile_whose_name_is_none_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / "chorus.json"
    file.write_text(json.dumps({"cluster": {"hostfile": name}}))
    with pytest.raises(ConfigError):
        load(file, environment={}, folder=tmp_path)
