"""What happens when somebody types what docs/coming-from.md tells them to type, row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Starts:
    """It starts processes, with these settings by their keys; `devices` are told by their ids."""

    settings: dict[str, Any]


@dataclass(frozen=True)
class Says:
    """It ends and prints this."""

    text: str


@dataclass(frozen=True)
class Served:
    """It is typed where a cluster runs, in tests/readers/test_served.py, and prints this."""

    text: str


@dataclass(frozen=True)
class OverSsh:
    """It is typed on a host of its own, in tests/e2e/hosts/test_readers.py, and prints this."""

    text: str


Outcome = Starts | Says | Served | OverSsh

QWEN_14B = {"model": "mlx-community/Qwen3-14B-4bit"}
RING = {**QWEN_14B, "devices": ["localhost", "192.168.5.2"], "engine.transport": "ring", "engine.ranks": 2}
QWEN = {"model": "mlx-community/Qwen3-1.7B-8bit", "devices": ["mini1", "mini2"], "engine.transport": "grpc"}
MINIMAX = {"model": "mlx-community/MiniMax-M2.1-4bit"}
MINIMAX_HERE = {**MINIMAX, "devices": []}

HAPPENS: dict[tuple[str, str], tuple[Outcome, ...]] = {
    # launch.sh and its .env
    ("ring_project", "`./launch.sh start`"): (OverSsh("ready  mlx-community/Qwen3-14B-4bit"),),
    ("ring_project", "`./launch.sh stop`"): (OverSsh("ended coordinator"),),
    ("ring_project", "`./launch.sh restart`"): (OverSsh("ready  mlx-community/Qwen3-14B-4bit"),),
    ("ring_project", "`./launch.sh status`"): (OverSsh("ready"),),
    ("ring_project", "`./launch.sh test`"): (OverSsh("generation"),),
    ("ring_project", "`tail -f server.log`"): (OverSsh("rank 1 holds layers"),),
    ("ring_project", "`tail -f api.log`"): (OverSsh("ready"),),
    ("ring_project", "`python3 test_config.py`"): (Says(".env: MODEL_REPO"),),
    ("ring_project", "`API_HOST=192.168.5.1` in `.env`"): (Says("chorus-"), Starts(RING)),
    ("ring_project", "`mlx.launch --hostfile hosts.json --backend ring python3 server.py`"): (
        Starts({**RING, "devices": ["192.168.5.1", "192.168.5.2"]}),
    ),
    (
        "ring_project",
        "`mlx.launch --hostfile hosts.json --backend jaccl python3 server.py`, with `rdma` in `hosts.json`",
    ): (
        Starts(
            {
                **QWEN_14B,
                "devices": ["192.168.5.1", "192.168.5.2"],
                "engine.transport": "jaccl",
                "engine.served_parallel": "tensor",
                "rdma_devices": ((None, "rdma_en5"), ("rdma_en4", None)),
            }
        ),
    ),
    ("ring_project", "`model.shard(group)` in `distributed/utils.py`"): (
        Starts({**RING, "engine.parallel": "tensor"}),
    ),
    ("ring_project", "`model.model.pipeline(group)` in `distributed/utils.py`"): (
        Starts({**RING, "engine.parallel": "pipeline"}),
    ),
    # launch_cluster.sh and distributed_config.json
    ("grpc_project", "`./launch_cluster.sh`"): (Served("ready  mlx-community/Qwen3-1.7B-8bit"),),
    ("grpc_project", "`./launch_cluster.sh --ssh-key ~/.ssh/key`"): (Starts(QWEN),),
    ("grpc_project", "`./stop_cluster.sh`"): (Served("mini1: ended coordinator"),),
    ("grpc_project", "`./launch_grpc_server.sh --device-id mini2 --port 50051`"): (Starts(QWEN),),
    ("grpc_project", "`./launch_distributed_api.sh --config distributed_config.json`"): (
        Starts({**QWEN, "api.max_tokens": 12, "sampling.temperature": 0.7, "engine.compression": "on"}),
    ),
    ("grpc_project", "`./launch_distributed_api.sh --port 8101 --log-level DEBUG`"): (
        Starts({**QWEN, "api.port": 8101, "log.level": "debug"}),
    ),
    ("grpc_project", "`curl http://localhost:8100/cluster/status`"): (Served("mini2"),),
    ("grpc_project", "`tail -f logs/mini2_server.log`"): (Served("holds layers 0-7"),),
    ("grpc_project", '`"strategy": "memory_proportional"`'): (Says("mini1 8-27"),),
    ("grpc_project", '`"custom_proportions": [0.7, 0.3]`'): (Says("mini1 9-27"),),
    (
        "grpc_project",
        "`python preshard_model.py --model mlx-community/Qwen3-1.7B-8bit --output shards/`",
    ): (Says("rank 0: layers 9-27"),),
    # mlx.launch and mlx_lm.server
    ("mlx_lm", "`mlx_lm.server --model mlx-community/MiniMax-M2.1-4bit`"): (
        Starts({**MINIMAX_HERE, "api.port": 8080, "engine.ranks": 1}),
    ),
    (
        "mlx_lm",
        "`mlx.launch -n 2 --backend ring -- python distributed_server.py --model mlx-community/MiniMax-M2.1-4bit "
        "--port 8080`",
    ): (Served("ready  mlx-community/MiniMax-M2.1-4bit"),),
    (
        "mlx_lm",
        "`mlx.launch --backend ring --hostfile hosts.json -- python distributed_server.py "
        "--model mlx-community/MiniMax-M2.1-4bit`",
    ): (Starts({**MINIMAX, "devices": ["192.168.1.100", "192.168.1.101"]}),),
    ("mlx_lm", "`--env MINIMAX_PIPELINE_SPLIT=22,40`"): (Starts({**MINIMAX_HERE, "engine.split": (22, 40)}),),
    ("mlx_lm", "`--env MLX_METAL_FAST_SYNCH=1`"): (Starts(MINIMAX_HERE),),
    ("mlx_lm", "`mlx.launch … mlx_lm.server --pipeline`"): (
        Starts({**MINIMAX_HERE, "engine.ranks": 2, "engine.served_parallel": "pipeline"}),
    ),
    ("mlx_lm", "`mlx.launch … mlx_lm.server`, without `--pipeline`"): (
        Starts({**MINIMAX_HERE, "engine.ranks": 2, "engine.served_parallel": "tensor"}),
    ),
    ("mlx_lm", "`--temp 0.7 --top-p 0.95 --top-k 40`"): (
        Starts({**MINIMAX_HERE, "sampling.temperature": 0.7, "sampling.top_p": 0.95, "sampling.top_k": 40}),
    ),
    ("mlx_lm", "`--max-tokens 512`"): (Starts({**MINIMAX_HERE, "api.max_tokens": 512}),),
    ("mlx_lm", "`--kv-bits 8`"): (Starts({**MINIMAX_HERE, "engine.kv_bits": 8}),),
    ("mlx_lm", "`--prompt-cache-bytes 4GB`"): (Starts({**MINIMAX_HERE, "cache.memory": 4 * 10**9}),),
    ("mlx_lm", "`--prefill-step-size 512 --decode-concurrency 8`"): (
        Starts({**MINIMAX_HERE, "engine.prefill_chunk": 512, "engine.max_batch": 8}),
    ),
    ("mlx_lm", "`--allowed-origins http://localhost:3000`"): (
        Starts({**MINIMAX_HERE, "api.cors_origins": ("http://localhost:3000",)}),
    ),
    ("mlx_lm", "`mlx.distributed_config --over thunderbolt --hosts m1,m2`"): (Says("mlx wheel"),),
    ("mlx_lm", "`uv run exo`, on the first machine"): (Says("chorus join"), Starts(MINIMAX_HERE)),
    ("mlx_lm", "`uv run exo`, on every other one"): (Starts({}),),
    ("mlx_lm", "`curl http://localhost:52415/instance/previews?model_id=…`"): (Says("62 layers"),),
    ("mlx_lm", "`EXO_OFFLINE=true uv run exo`"): (Starts(MINIMAX_HERE),),
    # local-ai worker and its YAML
    ("localai", "`local-ai worker mlx-distributed --hostfile hosts.json --rank 1`"): (Served("rank 1 holds layers"),),
    ("localai", "`MLX_DISTRIBUTED_HOSTFILE=hosts.json MLX_RANK=1 local-ai worker mlx-distributed`"): (Starts({}),),
    ("localai", "`local-ai worker mlx-distributed --hostfile hosts.json --rank 0 --addr localhost:50051`"): (
        Served("rank 0 holds layers"),
    ),
    (
        "localai",
        "`local-ai worker mlx-distributed --hostfile devices.json --rank 1 --backend jaccl "
        "--coordinator 192.168.1.10:5555`",
    ): (Starts({}),),
    ("localai", "`TOKEN=… local-ai worker p2p-mlx`"): (Starts({}),),
    ("localai", "`local-ai run --p2p`, as rank 0 of it"): (
        Starts({"model": "mlx-community/Llama-3.2-1B-Instruct-4bit"}),
    ),
    ("localai", "`run.sh --addr localhost:50051`"): (Starts({}),),
    ("localai", "`run.sh --worker --hostfile hosts.json --rank 1 --backend ring`"): (Starts({}),),
}
