"""Blocks of an answer as output items."""

from __future__ import annotations

from typing import Any

from chorus.serving.blocks import Block

_PREFIXES = {"text": "msg", "reasoning": "rs", "call": "fc"}


def item_id(response_id: str, block: Block) -> str:
    """Unlike any other item's, and the same in every event of a stream."""
    return f"{_PREFIXES[block.kind]}_{response_id.removeprefix('resp_')}{block.number:03d}"


def text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def reasoning_part(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def begun(response_id: str, block: Block) -> dict[str, Any]:
    head = {"id": item_id(response_id, block), "status": "in_progress"}
    match block.kind:
        case "text":
            return {**head, "type": "message", "role": "assistant", "content": []}
        case "reasoning":
            return {**head, "type": "reasoning", "summary": [], "content": []}
        case "call":
            return {**head, "type": "function_call", "call_id": block.call_id, "name": block.name, "arguments": ""}


def complete(response_id: str, block: Block, logprobs: list[dict[str, Any]], cut_off: bool = False) -> dict[str, Any]:
    item = {**begun(response_id, block), "status": "incomplete" if cut_off else "completed"}
    match block.kind:
        case "text":
            item["content"] = [text_part(block.text, logprobs)]
        case "reasoning":
            item["content"] = [reasoning_part(block.text)]
        case "call":
            item["arguments"] = block.text
    return item
