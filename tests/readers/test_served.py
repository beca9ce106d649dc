"""What docs/coming-from.md says is typed where it starts processes: they serve, and answer as the older project did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.localai.table import Client
from tests.readers.happens import HAPPENS, Served
from tests.readers.tables import now
from tests.readers.terminal import Terminal
from tests.support.door import usual_door


def line_of(project: str, typed: str) -> tuple[str, str]:
    """What is typed now, and what it says then."""
    (outcome,), (line,) = HAPPENS[project, typed], now(project, typed)
    assert isinstance(outcome, Served)
    return line, outcome.text


def chat(url: str, **body: Any) -> dict[str, Any]:
    question = [{"role": "user", "content": "Hello, test both ranks"}]
    answer = httpx.post(f"{url}/chat/completions", json={"messages": question, **body}, timeout=120)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_cluster_of_distributed_config_is_launched_watched_and_stopped(tmp_path: Path, hub_cache: Path) -> None:
    typed = ["`./launch_cluster.sh`", "`curl http://localhost:8100/cluster/status`", "`tail -f logs/mini2_server.log`"]
    up, status, logs, down = [line_of("grpc_project", line) for line in [*typed, "`./stop_cluster.sh`"]]
    with usual_door(), Terminal(tmp_path, "grpc_project", hub_cache, "8100", "50051", "50052") as terminal:
        url = f"http://127.0.0.1:{terminal.ports['8100']}"
        try:
            assert up[1] in terminal.run(up[0])
            answer = chat(f"{url}/v1", model="mlx-community/Qwen3-1.7B-8bit")
            assert answer["usage"]["completion_tokens"] <= 12, "as the file says"
            assert status[1] in terminal.run(status[0])
            ranks = httpx.get(f"{url}/cluster/status", timeout=60).json()["ranks"]
            assert [rank["layers"] for rank in ranks] == ["8-27", "0-7"], "0.7 and 0.3 of 28 layers"
            assert [rank["node"] for rank in ranks] == ["mini1", "mini2"]
            terminal.wait_for(terminal.start(logs[0]), logs[1])
        finally:
            assert down[1] in terminal.run(down[0])


def test_two_ranks_on_one_machine_answer_as_mlx_lm_does(tmp_path: Path, hub_cache: Path) -> None:
    line, said = line_of(
        "mlx_lm",
        "`mlx.launch -n 2 --backend ring -- python distributed_server.py --model mlx-community/MiniMax-M2.1-4bit "
        "--port 8080`",
    )
    with Terminal(tmp_path, "mlx_lm", hub_cache, "8080") as terminal:
        terminal.wait_for(terminal.start(line), said)
        url = f"http://127.0.0.1:{terminal.ports['8080']}"
        # As mlx-lm's own pages write it, with the values that mean nothing there.
        unset = {"repetition_penalty": 0.0, "repetition_context_size": 20, "adapters": None, "draft_model": None}
        # What is drawn at random may be the end; from this seed it is not.
        assert chat(url, max_tokens=4, temperature=0.7, seed=1, **unset)["usage"]["completion_tokens"] == 4
        likeliest = chat(f"{url}/v1", max_tokens=2, temperature=0, model="default_model")
        assert likeliest["choices"][0]["finish_reason"] == "length"
        assert httpx.get(f"{url}/health", timeout=60).status_code == 200


def test_ranks_of_a_hostfile_serve_localai(tmp_path: Path, hub_cache: Path) -> None:
    first = line_of("localai", "`local-ai worker mlx-distributed --hostfile hosts.json --rank 1`")
    lead = "`local-ai worker mlx-distributed --hostfile hosts.json --rank 0 --addr localhost:50051`"
    second = line_of("localai", lead)
    with Terminal(tmp_path, "localai", hub_cache, "5555", "5556", "50051") as terminal:
        worker, server = terminal.start(first[0]), terminal.start(second[0])
        terminal.wait_for(server, "localhost")
        client = Client(f"127.0.0.1:{terminal.ports['50051']}", None)
        model = yaml.safe_load((terminal.folder / "llama-distributed.yaml").read_text())
        # The hostfile need not be among the options: rank 0 has it from its command line.
        options = [option for option in model["options"] if not option.startswith("hostfile:")]
        loaded = client.LoadModel(Model=model["parameters"]["model"], Options=options)
        assert (loaded.success, loaded.message) == (True, "Model loaded successfully")
        assert client.Predict(Prompt="The capital of France is", Tokens=8, Seed=1).message
        terminal.wait_for(worker, first[1])
        terminal.wait_for(server, second[1])
