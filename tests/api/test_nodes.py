"""What a front end knows of the nodes of its ranks."""

from __future__ import annotations

import json
from pathlib import Path

from chorus.api.nodes import NodeNames
from chorus.config.front_end import ModelSettings


def test_ranks_are_named_by_their_nodes_as_the_coordinator_last_wrote_of_them(tmp_path: Path) -> None:
    now = 0.0
    names, file = NodeNames(clock=lambda: now), tmp_path / "cluster.json"
    told = {"engine_address": "unix:nobody", "id": "m", "name": "m", "path": str(tmp_path)}
    model = ModelSettings(**told, rank_names=("first", "second"), status_file=file)

    def written(**ranks: list[dict[str, object]]) -> dict[int, str]:
        nonlocal now
        file.write_text(json.dumps({"nodes": [{"name": node, "ranks": of} for node, of in ranks.items()]}))
        now += 60
        names.look(model)
        return dict(names.known("m"))

    assert names.known("m") == {}
    names.look(model)
    assert names.known("m") == {0: "first", 1: "second"}
    assert written(mini=[{"rank": 1, "running": True}]) == {0: "first", 1: "mini"}
    assert written(studio=[{"rank": 1, "running": True}]) == {0: "first", 1: "studio"}
    assert written(studio=[{"rank": 1, "running": False}]) == {0: "first", 1: "studio"}, "it is being replaced"
