"""Three hundred connections at once: some stream, some wait, some leave."""

from __future__ import annotations

import asyncio
import json

import httpx
import psutil

from chorus.text.tokenizer import Tokenizer
from tests.api.conftest import ApiProcess, eventually, open_requests
from tests.api.scripted_engine import Run, ScriptedEngine, say, say_until_cancelled

EACH = 100
QUESTION = "What is the capital of France?"


async def crowd(url: str) -> tuple[list[str], list[str]]:
    limits = httpx.Limits(max_connections=3 * EACH)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:

        def body(name: str, stream: bool) -> dict[str, object]:
            return {"messages": [{"role": "user", "content": QUESTION}], "stream": stream, "user": name, "seed": EACH}

        async def streams(number: int) -> str:
            text = ""
            async with http.stream("POST", "/v1/chat/completions", json=body(f"s{number}", True)) as response:
                assert response.status_code == 200
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        text += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
            assert line == "" or line == "data: [DONE]"
            return text

        async def waits(number: int) -> str:
            response = await http.post("/v1/chat/completions", json=body(f"w{number}", False))
            assert response.status_code == 200, response.text
            return str(response.json()["choices"][0]["message"]["content"])

        async def leaves(number: int) -> None:
            leaving = {**body(f"l{number}", True), "seed": 1}
            async with http.stream("POST", "/v1/chat/completions", json=leaving) as response:
                await anext(response.aiter_lines())

        tasks = [kind(number) for number in range(EACH) for kind in (streams, waits, leaves)]
        results = await asyncio.gather(*tasks)
        return results[::3], results[1::3]


def test_none_is_lost_and_nothing_is_left(
    api: ApiProcess, http: httpx.Client, engine: ScriptedEngine, tokenizer: Tokenizer
) -> None:
    answer = tokenizer.encode("The capital of France is Paris.", special=False)

    def script(run: Run) -> None:
        (say(answer) if run.submit.sampling.seed == EACH else say_until_cancelled(answer[:2]))(run)

    engine.default = script
    process = psutil.Process(api.process.pid)
    sizes = []
    for _ in range(3):
        engine.runs.clear()
        streamed, waited = asyncio.run(crowd(api.url))
        assert set(streamed) == set(waited) == {"The capital of France is Paris."}
        for run in engine.runs:
            if run.submit.sampling.seed != EACH:
                run.wait_cancelled()
        eventually(lambda: open_requests(http) == 0, "all forgotten")
        sizes.append(process.memory_info().rss)
    # The first crowd fills caches and pools; a crowd after that must not cost anything that stays.
    assert sizes[2] - sizes[1] < 20 * 2**20, sizes
