"""What other people's programs sent when they were tried, shortened: each field and each shape that they used is here.

Claude Code 2.1.197 and 2.1.325, OpenCode 1.18.33, Cline 3.0.65 and Open WebUI 0.12.4.
"""

from __future__ import annotations

from typing import Any

MODEL_ID = "acme/tiny-model"
EPHEMERAL = {"type": "ephemeral"}
SCHEMA = "https://json-schema.org/draft/2020-12/schema"
READ_PARAMETERS = {
    "$schema": SCHEMA,
    "type": "object",
    "properties": {
        "file_path": {"description": "Where the file is", "type": "string"},
        "offset": {"description": "First line", "type": "integer", "minimum": 0, "maximum": 9007199254740991},
        "limit": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
    },
    "required": ["file_path"],
    "additionalProperties": False,
}
CLAUDE_CODE_HEADERS = {
    "accept": "application/json",
    "authorization": "Bearer none",
    "user-agent": "claude-cli/2.1.197 (external, sdk-cli)",
    "x-claude-code-session-id": "00000000-0000-0000-0000-000000000000",
    "x-stainless-lang": "js",
    "x-stainless-retry-count": "0",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "anthropic-dangerous-direct-browser-access": "true",
    "anthropic-version": "2023-06-01",
    "x-app": "cli",
}
CLAUDE_CODE: dict[str, Any] = {
    "model": "default_model",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nIt is Sunday.\n</system-reminder>\n\n"},
                {"type": "text", "text": "What does note.txt say?", "cache_control": EPHEMERAL},
            ],
        },
        {"role": "system", "content": "These skills can be used:\n- init: begin a project"},
    ],
    "system": [
        {
            "type": "text",
            "text": "x-anthropic-billing-header: cc_version=2.1.325.262; cc_entrypoint=sdk-cli; cch=00000;"
            " cc_prev_req=req_0; cc_turn_index=0;",
        },
        {"type": "text", "text": "You are an agent.", "cache_control": EPHEMERAL},
        {"type": "text", "text": "\nYou help with software.", "cache_control": EPHEMERAL},
    ],
    "tools": [
        {"name": "Read", "description": "Reads a file", "input_schema": READ_PARAMETERS},
        {"name": "TaskList", "description": "Lists tasks", "input_schema": {"type": "object", "properties": {}}},
    ],
    "metadata": {"user_id": '{"device_id":"0","account_uuid":"","session_id":"0"}'},
    "max_tokens": 32000,
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "stream": True,
}
CLAUDE_CODE_RESULT: list[dict[str, Any]] = [
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I must look.", "signature": ""},
            {"type": "text", "text": "I read it.", "citations": None},
            {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "/w/note.txt"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"tool_use_id": "toolu_1", "type": "tool_result", "content": "1\tplum\n2\t", "cache_control": EPHEMERAL}
        ],
    },
]
# A tool that is described when a search has found it; until then it is only known to be there.
CLAUDE_CODE_DEFERRED: dict[str, Any] = {
    "name": "CronCreate",
    "description": "Runs something later",
    "input_schema": {"type": "object", "properties": {"cron": {"type": "string"}}, "required": ["cron"]},
    "defer_loading": True,
}
CLAUDE_CODE_SEARCH: list[dict[str, Any]] = [
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": ""},
            {"type": "tool_use", "id": "toolu_2", "name": "ToolSearch", "input": {"query": "cron", "max_results": 5.0}},
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "toolu_2",
                "content": [{"type": "tool_reference", "tool_name": "CronCreate"}],
                "cache_control": EPHEMERAL,
            }
        ],
    },
]
CLAUDE_CODE_REMINDER = "The task tools haven't been used recently."
OPENCODE_HEADERS = {
    "user-agent": "opencode/1.18.33 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14",
    "x-session-affinity": "ses_0",
    "x-session-id": "ses_0",
}
OPENCODE_TITLE: dict[str, Any] = {
    "model": "default_model",
    "max_tokens": 1024,
    "messages": [
        {"role": "system", "content": "You write titles."},
        {"role": "user", "content": "Write a title for this:\n"},
        {"role": "user", "content": '"What does note.txt say?"'},
    ],
    "stream": True,
    "stream_options": {"include_usage": True},
}
OPENCODE: dict[str, Any] = {
    **OPENCODE_TITLE,
    "messages": [
        {"role": "system", "content": "You are a tool for the command line."},
        {"role": "user", "content": '"What does note.txt say?"'},
    ],
    "tools": [
        {"type": "function", "function": {"name": "Read", "description": "Reads", "parameters": READ_PARAMETERS}}
    ],
    "tool_choice": "auto",
}
# Cline has the same library below it, and asks for no limit.
CLINE_HEADERS = {
    "user-agent": "ai-sdk/openai-compatible/3.0.37 ai-sdk/provider-utils/5.0.30 runtime/bun/1.3.13",
    "authorization": "Bearer none",
}
CLINE: dict[str, Any] = {key: value for key, value in OPENCODE.items() if key != "max_tokens"}
OPEN_WEBUI_ADJUSTED: dict[str, Any] = {
    "model": MODEL_ID,
    "stream": True,
    "stream_options": {"include_usage": True},
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is the capital of Italy?"}]},
    ],
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.01,
    "max_tokens": 12,
    "seed": 3,
    "stop": ["zzz"],
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
    "reasoning_effort": "low",
}
