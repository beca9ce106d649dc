"""Commands and flags that people know from mlx-lm, `mlx.launch`, LocalAI and launch scripts, and what to type here."""

from __future__ import annotations

from collections.abc import Mapping

from chorus.transport import catalog

_FUSE = "adapters are not served: make one model of both with mlx_lm.fuse"
_DRAFTS = "draft models are not served"
_HOSTS = "say chorus up MODEL -c HOSTFILE, which starts the ranks over SSH"
_TEMPLATE = "the model's own is used: put a chat_template.jinja into its folder"


def _setting(key: str, example: str) -> str:
    variable = f"CHORUS_{key.upper().replace('.', '__')}"
    return f"set {key} in chorus.yaml, or {variable}={example} before the command"


_OF_SERVER: Mapping[str, str] = {
    "--temp": "say --temperature",
    "--max-tokens": _setting("api.max_tokens", "512"),
    "--min-p": _setting("sampling.min_p", "0.05"),
    "--allowed-origins": "say --cors-origin, once for each",
    "--adapter-path": _FUSE,
    "--draft-model": _DRAFTS,
    "--num-draft-tokens": _DRAFTS,
    "--chat-template": _TEMPLATE,
    "--use-default-chat-template": _TEMPLATE,
    "--chat-template-args": "requests give them, as chat_template_kwargs",
    "--decode-concurrency": _setting("engine.max_batch", "8"),
    "--prompt-concurrency": "prompts that begin together are read together, as many as the batch holds",
    "--prefill-step-size": _setting("engine.prefill_chunk", "512"),
    "--prompt-cache-size": _setting("cache.max_entries", "10"),
    "--prompt-cache-bytes": "say --cache-memory",
    "--kv-group-size": "it is 64; --kv-bits chooses the bits",
    "--quantized-kv-start": "keys and values have --kv-bits from the first token on",
    "--pipeline": "say --parallel pipeline, or nothing: it is the default",
    "--hostfile": _HOSTS,
    "--hosts": _HOSTS,
    "--backend": "say --transport",
    "--repeat-hosts": "say --ranks",
    "-n": "say --ranks",
    "--verbose": "say --log-level debug",
}

OLDER_FLAGS: Mapping[str, Mapping[str, str]] = {
    "serve": _OF_SERVER,
    "up": {
        "--model": "the model stands alone: chorus up MODEL -c FILE",
        "--hostfile": "say -c HOSTFILE",
        "--hosts": "write them into a hostfile, and say -c HOSTFILE",
        "--backend": _setting("engine.transport", catalog.by_hand()[0]),
        "--env": "write envs into the hostfile, or cluster.env into chorus.yaml",
        "--python": "give devices a `python` in chorus.yaml",
        "--ssh-key": "it is your own ssh's: IdentityFile in ~/.ssh/config",
        "--no-workers": "start the coordinator alone with chorus serve -c FILE --cluster",
        "--no-api": "start a node alone with chorus join -c FILE --device-id ID",
        "--pipeline": _setting("engine.parallel", "pipeline"),
        "--temp": _setting("sampling.temperature", "0.7"),
        "--max-tokens": _setting("api.max_tokens", "512"),
    },
}
"""By command: what to do where one of these was typed."""


OLDER_COMMANDS: Mapping[str, str] = {
    "start": "chorus up",
    "stop": "chorus down",
    "launch": "chorus up MODEL -c HOSTFILE, or chorus serve MODEL --ranks 2 on one machine",
    "run": "chorus serve MODEL",
    "server": "chorus serve MODEL",
}


def older_command(command: str) -> str | None:
    """The one line for a command that there is not; None where nobody knows it."""
    instead = OLDER_COMMANDS.get(command)
    return f"there is no command {command}: say {instead}" if instead else None


def older_flag(command: str, flag: str) -> str | None:
    """The one line for a flag that the command does not have; None where nobody knows it."""
    remedy = OLDER_FLAGS.get(command, {}).get(flag)
    return f"{command} has no {flag}: {remedy}" if remedy else None
