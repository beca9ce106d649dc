"""`chorus test`: a real question to what is being served, with figures."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from chorus.cli.own_server import ASK_SECONDS, KeyOption, PortOption, Target, UrlOption, ask, find_target

QUESTION = "Please tell me the capital of France."


def try_served(
    url: UrlOption = None,
    port: PortOption = None,
    prompt: Annotated[str, typer.Option(help="What to ask.")] = QUESTION,
    tokens: Annotated[int, typer.Option(min=1, help="At most so many tokens.")] = 64,
    api_key: KeyOption = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the answer.")] = 120.0,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Ask the cluster of this file, by SSH.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Ask the served model something and print the answer, the speeds and the time to the first token.

    Example: chorus test
    """
    if config:
        from chorus.cli.up import on_first_host  # SSH and what it needs take a while to import

        words = ["test", "--prompt", prompt, "--tokens", str(tokens), "--timeout", str(timeout)]
        on_first_host(config, [*words, *(["--json"] if as_json else [])], timeout + ASK_SECONDS)
        return
    found = try_question(find_target(url, port, api_key), prompt, tokens, timeout)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    typer.echo(found["answer"])
    typer.echo(figures_line(found))


def figures_line(found: dict[str, Any]) -> str:
    """How fast it was; a speed that one token does not have is left out."""
    figures, prompt_tokens = found["performance"], found["usage"].get("prompt_tokens", 0)
    speeds = {
        "prompt": figures.get("prompt_tokens_per_second"),
        "generation": figures.get("generation_tokens_per_second"),
    }
    parts = [f"{name} {speed:.1f} tok/s" for name, speed in speeds.items() if speed]
    if cached := figures.get("cached_tokens"):
        parts.append(f"{cached} of {prompt_tokens} prompt tokens were stored")
    if first := figures.get("time_to_first_token_seconds"):
        parts.append(f"first token after {first:.2f} s")
    return ", ".join([*parts, f"in all {found['seconds']:.2f} s"])


def try_question(target: Target, prompt: str, tokens: int, timeout: float) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0}
    started = time.perf_counter()
    found = ask(target, "POST", "/v1/chat/completions", body, timeout)
    return {
        "answer": found["choices"][0]["message"]["content"],
        "seconds": round(time.perf_counter() - started, 3),
        "usage": found.get("usage", {}),
        "performance": found.get("performance", {}),
    }
