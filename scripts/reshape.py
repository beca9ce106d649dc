"""Moves a checkout from the tree of 21fcac1 or later to today's: files, imports, names, modules that are named in text.

    python scripts/reshape.py FOLDER

Whatever was moved already is left alone, so it can be run again: on a branch that was begun before the move, or on the
tests of the commit before it (how that is done is in CONTRIBUTING.md).
"""

from __future__ import annotations

import ast
import io
import os
import re
import shutil
import subprocess
import sys
import tokenize
from pathlib import Path

MOVED_MODULES = """
chorus.api.access -> chorus.api.server.gate
chorus.api.chat -> chorus.api.openai.chat
chorus.api.completions -> chorus.api.openai.completions
chorus.api.connections -> chorus.api.server.connections
chorus.api.conversation -> chorus.serving.prompt.conversation
chorus.api.describe -> chorus.api.openapi
chorus.api.door -> chorus.api.server.door
chorus.api.embeddings -> chorus.api.openai.embeddings
chorus.api.figures -> chorus.api.usage
chorus.api.head -> chorus.api.server.head
chorus.api.http_protocol -> chorus.api.server.protocol
chorus.api.key_rules -> chorus.security.key_rules
chorus.api.keyfile -> chorus.security.key_file
chorus.api.lifetime -> chorus.api.server.lifetime
chorus.api.logprobs -> chorus.api.openai.logprobs
chorus.api.messages -> chorus.api.anthropic
chorus.api.openai_stream -> chorus.api.openai.choices
chorus.api.plain_tools -> chorus.serving.prompt.plain_tools
chorus.api.responses -> chorus.api.openai.responses
chorus.api.roles -> chorus.serving.prompt.roles
chorus.api.sampling_fields -> chorus.api.openai.sampling
chorus.api.server -> chorus.api.process
chorus.api.settings -> chorus.config.front_end
chorus.api.sites -> chorus.api.server.sites
chorus.api.strict -> chorus.api.fields
chorus.api.tls -> chorus.security.tls
chorus.api.tools -> chorus.serving.requests.tools
chorus.cli.join_service -> chorus.deploy.services
chorus.cli.processes -> chorus.deploy.programs
chorus.cli.serve_plan -> chorus.deploy.local_plan
chorus.cli.serve_preshard -> chorus.deploy.preshard
chorus.cli.serving -> chorus.deploy.front_end
chorus.cli.up_coordinator -> chorus.cli.serve
chorus.cli.up_options -> chorus.cli.options
chorus.cli.up_plan -> chorus.deploy.nodes.plan
chorus.cli.up_serve -> chorus.deploy.nodes.serve
chorus.cli.worker_lead -> chorus.deploy.hostfile.serve
chorus.cluster.agent -> chorus.cluster.agent.process
chorus.cluster.agent_door -> chorus.cluster.agent.door
chorus.cluster.agent_health -> chorus.cluster.health
chorus.cluster.agent_models -> chorus.cluster.agent.model_files
chorus.cluster.agent_paths -> chorus.security.node_folder
chorus.cluster.agent_peers -> chorus.cluster.agent.peers
chorus.cluster.agent_ranks -> chorus.cluster.agent.ranks
chorus.cluster.agent_service -> chorus.cluster.agent.service
chorus.cluster.config -> chorus.config.sources
chorus.cluster.config_file -> chorus.config.file
chorus.cluster.config_tree -> chorus.config.sections
chorus.cluster.coordinator -> chorus.cluster.coordinator.process
chorus.cluster.coordinator_calls -> chorus.cluster.coordinator.calls
chorus.cluster.coordinator_group -> chorus.deploy.nodes.group
chorus.cluster.coordinator_parts -> chorus.cluster.coordinator.parts
chorus.cluster.coordinator_record -> chorus.cluster.coordinator.record
chorus.cluster.coordinator_sources -> chorus.cluster.coordinator.sources
chorus.cluster.costs -> chorus.planning.costs
chorus.cluster.costs_chain -> chorus.planning.costs
chorus.cluster.facts -> chorus.planning.facts
chorus.cluster.facts_cache -> chorus.planning.cache_sizes
chorus.cluster.facts_remote -> chorus.planning.facts
chorus.cluster.hostfile -> chorus.config.hostfile
chorus.cluster.https -> chorus.security.https
chorus.cluster.legacy_config -> chorus.config.older_projects
chorus.cluster.origins -> chorus.config.origins
chorus.cluster.plan -> chorus.planning.plan
chorus.cluster.planner -> chorus.planning.planner
chorus.cluster.planner_build -> chorus.planning.build
chorus.cluster.planner_hints -> chorus.planning.hints
chorus.cluster.planner_hybrid -> chorus.planning.hybrid
chorus.cluster.planner_nodes -> chorus.planning.nodes
chorus.cluster.planner_search -> chorus.planning.search
chorus.cluster.planner_split -> chorus.planning.cuts
chorus.cluster.planner_strategies -> chorus.planning.strategies
chorus.cluster.planner_tensor -> chorus.planning.tensor
chorus.cluster.planner_wish -> chorus.planning.problem
chorus.cluster.profile -> chorus.cluster.profile.machine
chorus.cluster.profile_kernels -> chorus.cluster.profile.kernels
chorus.cluster.profile_links -> chorus.cluster.profile.links
chorus.cluster.rendezvous -> chorus.deploy.hostfile.rendezvous
chorus.cluster.ssh -> chorus.deploy.ssh.cluster
chorus.cluster.ssh_hosts -> chorus.deploy.ssh.hosts
chorus.cluster.ssh_launch -> chorus.deploy.ssh.launch
chorus.cluster.ssh_package -> chorus.deploy.ssh.package
chorus.cluster.ssh_probe -> chorus.deploy.ssh.probe
chorus.cluster.ssh_remote -> chorus.deploy.ssh.remote
chorus.cluster.ssh_shell -> chorus.deploy.ssh.shell
chorus.cluster.supervisor -> chorus.deploy.supervisor
chorus.cluster.token -> chorus.security.token
chorus.cluster.transfer -> chorus.cluster.transfer.share
chorus.cluster.transfer_disk -> chorus.cluster.transfer.disk
chorus.cluster.transfer_fetch -> chorus.cluster.transfer.fetch
chorus.cluster.transfer_sources -> chorus.cluster.transfer.sources
chorus.cluster.trust -> chorus.security.authority
chorus.cluster.trust_enrol -> chorus.security.enrol
chorus.cluster.trust_expelled -> chorus.security.expelled
chorus.cluster.trust_guard -> chorus.security.guard
chorus.cluster.trust_identity -> chorus.security.identity
chorus.cluster.trust_join -> chorus.security.handshake
chorus.cluster.trust_lines -> chorus.security.lines
chorus.cluster.trust_meet -> chorus.security.meet
chorus.cluster.trust_names -> chorus.security.names
chorus.cluster.watcher -> chorus.platform.process.watcher
chorus.deploy.by_hand -> chorus.deploy.hostfile.serve
chorus.deploy.places -> chorus.deploy.hostfile.places
chorus.deploy.rendezvous -> chorus.deploy.hostfile.rendezvous
chorus.engine.chunks -> chorus.engine.scheduling.chunks
chorus.engine.followers -> chorus.engine.ranks.followers
chorus.engine.group -> chorus.engine.lifecycle.group
chorus.engine.kept -> chorus.engine.lifecycle.kept
chorus.engine.patience -> chorus.engine.ranks.patience
chorus.engine.process -> chorus.engine.lifecycle.process
chorus.engine.recovery -> chorus.engine.lifecycle.recovery
chorus.engine.requests -> chorus.messages.engine
chorus.engine.reuse -> chorus.engine.scheduling.reuse
chorus.engine.scheduler -> chorus.engine.scheduling.scheduler
chorus.engine.sequences -> chorus.engine.scheduling.sequences
chorus.engine.spec -> chorus.config.engine
chorus.engine.threads -> chorus.engine.lifecycle.threads
chorus.engine.tracing -> chorus.engine.ranks.tracing
chorus.engine.waiting -> chorus.engine.scheduling.waiting
chorus.engine.warmup -> chorus.engine.lifecycle.warmup
chorus.frontend -> chorus.serving
chorus.frontend.answer -> chorus.serving.answer
chorus.frontend.blocks -> chorus.serving.blocks
chorus.frontend.choices -> chorus.serving.choices
chorus.frontend.conversation -> chorus.serving.prompt.answer_format
chorus.frontend.embedding -> chorus.serving.models.embedding
chorus.frontend.engine_client -> chorus.serving.engine_link.client
chorus.frontend.errors -> chorus.serving.errors
chorus.frontend.generation -> chorus.serving.generation
chorus.frontend.measure -> chorus.serving.requests.measure
chorus.frontend.messages -> chorus.messages.engine
chorus.frontend.vocabulary -> chorus.serving.prompt.tokenizer
chorus.frontend.workers -> chorus.serving.workers
chorus.models.gguf_config -> chorus.models.gguf.config
chorus.models.gguf_import -> chorus.models.gguf.convert
chorus.models.gguf_reader -> chorus.models.gguf.reader
chorus.models.gguf_tokenizer -> chorus.models.gguf.tokenizer
chorus.models.hub -> chorus.models.hub.cache
chorus.models.hub_client -> chorus.models.hub.client
chorus.models.hub_record -> chorus.models.hub.record
chorus.models.preshard -> chorus.models.preshard.folder
chorus.models.preshard_write -> chorus.models.preshard.write
chorus.models.quantized -> chorus.models.gguf.quantized
chorus.platform.beats -> chorus.platform.process.beats
chorus.platform.beside -> chorus.platform.cpu.beside
chorus.platform.blas -> chorus.platform.cpu.blas
chorus.platform.checks -> chorus.cluster.doctor.checks
chorus.platform.chip -> chorus.platform.accelerator.chip
chorus.platform.cores -> chorus.platform.cpu.cores
chorus.platform.device -> chorus.platform.accelerator.device
chorus.platform.disk -> chorus.platform.storage.disk
chorus.platform.dtype -> chorus.platform.accelerator.dtype
chorus.platform.elf -> chorus.platform.cpu.elf
chorus.platform.exits -> chorus.platform.process.exits
chorus.platform.filelimit -> chorus.platform.storage.filelimit
chorus.platform.files -> chorus.platform.storage.files
chorus.platform.freed_buffers -> chorus.platform.memory.freed_buffers
chorus.platform.grpc_tuning -> chorus.platform.network.grpc_tuning
chorus.platform.ledger -> chorus.platform.memory.ledger
chorus.platform.lifeline -> chorus.platform.process.lifeline
chorus.platform.links -> chorus.platform.network.links
chorus.platform.logs -> chorus.platform.process.logs
chorus.platform.mac_memory -> chorus.platform.memory.mac
chorus.platform.memory -> chorus.platform.memory.amounts
chorus.platform.metal -> chorus.platform.memory.metal
chorus.platform.mlx_import -> chorus.platform.accelerator.mlx_import
chorus.platform.mpi -> chorus.platform.accelerator.mpi
chorus.platform.network -> chorus.platform.network.failures
chorus.platform.no_memory -> chorus.platform.process.no_memory
chorus.platform.output -> chorus.platform.process.output
chorus.platform.paths -> chorus.platform.storage.paths
chorus.platform.ports -> chorus.platform.network.ports
chorus.platform.probe -> chorus.cluster.doctor.probe
chorus.platform.process_mark -> chorus.platform.process.mark
chorus.platform.products -> chorus.platform.cpu.products
chorus.platform.rdma -> chorus.platform.network.rdma
chorus.platform.rdma_checks -> chorus.cluster.doctor.rdma
chorus.platform.renamed_blas -> chorus.platform.cpu.renamed_blas
chorus.platform.scratch -> chorus.platform.cpu.scratch
chorus.platform.trials -> chorus.platform.cpu.trials
chorus.proto -> chorus.messages.proto
chorus.serving.directory -> chorus.serving.models.directory
chorus.serving.embedding -> chorus.serving.models.embedding
chorus.serving.engine_client -> chorus.serving.engine_link.client
chorus.serving.grammar -> chorus.serving.requests.grammar
chorus.serving.measure -> chorus.serving.requests.measure
chorus.serving.model -> chorus.serving.models.model
chorus.serving.owner -> chorus.serving.models.owner
chorus.serving.poison -> chorus.serving.engine_link.poison
chorus.serving.recovery -> chorus.serving.engine_link.recovery
chorus.serving.request -> chorus.serving.requests.request
chorus.serving.sampling -> chorus.serving.requests.sampling
chorus.serving.sharing -> chorus.serving.requests.sharing
chorus.serving.standing -> chorus.serving.engine_link.standing
chorus.serving.times -> chorus.serving.engine_link.times
chorus.serving.tokenizer -> chorus.serving.prompt.tokenizer
chorus.serving.tool_grammar -> chorus.serving.requests.tool_grammar
chorus.serving.tools -> chorus.serving.requests.tools
chorus.serving.watch -> chorus.serving.engine_link.watch
chorus.shard -> chorus.rank
chorus.shard.adapters -> chorus.rank.pipeline.special
chorus.shard.architectures -> chorus.rank.pipeline.rules
chorus.shard.batch -> chorus.rank.cache.batch
chorus.shard.caches -> chorus.rank.cache.caches
chorus.shard.graph_tokens -> chorus.rank.graph_tokens
chorus.shard.layout -> chorus.planning.layout
chorus.shard.parameters -> chorus.rank.parameters
chorus.shard.pipeline -> chorus.rank.pipeline.stage
chorus.shard.preshard_slices -> chorus.rank.tensor.preshard
chorus.shard.slices -> chorus.rank.tensor.stored_slices
chorus.shard.split -> chorus.planning.split
chorus.shard.steps -> chorus.messages.rank
chorus.shard.tensor -> chorus.rank.tensor.divide
chorus.shard.tensor_rules -> chorus.rank.tensor
chorus.shard.token_relay -> chorus.rank.pipeline.token_relay
chorus.shard.upstream -> chorus.rank.upstream.decoders
chorus.shard.upstream_lean -> chorus.rank.upstream.lean
chorus.shard.upstream_weights -> chorus.rank.upstream.weights
chorus.shard.wire -> chorus.messages.rank
chorus.text.grammar.limits -> chorus.config.grammar
chorus.text.grammar.source -> chorus.messages.grammar
chorus.text.parsers.family -> chorus.text.parsers.toolkit.family
chorus.text.parsers.jsoncall -> chorus.text.parsers.toolkit.jsoncall
chorus.text.parsers.jsonscan -> chorus.text.parsers.toolkit.jsonscan
chorus.text.parsers.lark -> chorus.text.parsers.toolkit.lark
chorus.text.parsers.members -> chorus.text.parsers.toolkit.members
chorus.text.parsers.outline -> chorus.text.parsers.toolkit.outline
chorus.text.parsers.pieces -> chorus.text.parsers.toolkit.pieces
chorus.text.parsers.regexes -> chorus.text.parsers.toolkit.regexes
chorus.text.parsers.source -> chorus.text.parsers.toolkit.source
chorus.text.parsers.strings -> chorus.text.parsers.toolkit.strings
chorus.text.parsers.tagged -> chorus.text.parsers.toolkit.tagged
chorus.text.parsers.tagged_grammar -> chorus.text.parsers.toolkit.tagged_grammar
chorus.text.parsers.values -> chorus.text.parsers.toolkit.values
tests.agents -> tests.cluster
tests.agents.conftest -> tests.cluster.conftest
tests.agents.dockerfile -> tests.deploy.dockerfile
tests.agents.harness -> tests.cluster.harness
tests.agents.test_agents -> tests.cluster.test_agents
tests.agents.test_copy_lock -> tests.cluster.test_copy_lock
tests.agents.test_dockerfile -> tests.deploy.test_dockerfile
tests.agents.test_members -> tests.cluster.test_members
tests.agents.test_plan -> tests.deploy.test_node_plan
tests.agents.test_refusals -> tests.cluster.test_refusals
tests.agents.test_sources -> tests.cluster.test_sources
tests.agents.test_ssh -> tests.deploy.test_ssh
tests.agents.test_transfer -> tests.cluster.test_transfer
tests.agents.test_trust -> tests.security.test_trust
tests.agents.test_worker -> tests.deploy.test_worker
tests.cluster.broken -> tests.config.broken
tests.cluster.clusters -> tests.planning.clusters
tests.cluster.golden -> tests.config.golden
tests.cluster.test_config -> tests.config.test_config
tests.cluster.test_facts -> tests.planning.test_facts
tests.cluster.test_one_device -> tests.deploy.test_one_device
tests.cluster.test_plan_command -> tests.planning.test_plan_command
tests.cluster.test_plan_policies -> tests.planning.test_plan_policies
tests.cluster.test_planner -> tests.planning.test_planner
tests.cluster.test_planner_hybrid -> tests.planning.test_planner_hybrid
tests.cluster.test_preshard -> tests.models.test_preshard
tests.cluster.test_preshard_serving -> tests.deploy.test_preshard_serving
tests.cluster.test_preshard_slices -> tests.rank.tensor.test_preshard_slices
tests.cluster.test_restarts -> tests.deploy.test_restarts
tests.cluster_system -> tests.e2e.hosts
tests.cluster_system.hosts -> tests.e2e.hosts.namespaces
tests.engine.test_chunk_warmup -> tests.engine.lifecycle.test_chunk_warmup
tests.engine.test_chunks -> tests.engine.scheduling.test_chunks
tests.engine.test_lanes -> tests.engine.lifecycle.test_lanes
tests.engine.test_losses -> tests.engine.ranks.test_losses
tests.engine.test_patience -> tests.engine.ranks.test_patience
tests.engine.test_prefixes -> tests.engine.prefix.test_prefixes
tests.engine.test_queue_cost -> tests.engine.scheduling.test_queue_cost
tests.engine.test_recovery -> tests.engine.lifecycle.test_recovery
tests.engine.test_scheduler -> tests.engine.scheduling.test_scheduler
tests.engine.test_threads -> tests.engine.lifecycle.test_threads
tests.engine.test_waiting -> tests.engine.scheduling.test_waiting
tests.frontend -> tests.serving
tests.hardening -> tests.e2e.hardening
tests.parity -> tests.rank.pipeline
tests.pipeline -> tests.rank.pipeline
tests.platform.test_beats -> tests.platform.process.test_beats
tests.platform.test_blas -> tests.platform.cpu.test_blas
tests.platform.test_disk -> tests.platform.storage.test_disk
tests.platform.test_filelimit -> tests.platform.storage.test_filelimit
tests.platform.test_freed_buffers -> tests.platform.memory.test_freed_buffers
tests.platform.test_ledger -> tests.platform.memory.test_ledger
tests.platform.test_lifeline -> tests.platform.process.test_lifeline
tests.platform.test_links -> tests.platform.network.test_links
tests.platform.test_logs -> tests.platform.process.test_logs
tests.platform.test_looks -> tests.platform.process.test_looks
tests.platform.test_losses -> tests.platform.process.test_losses
tests.platform.test_mac_memory -> tests.platform.memory.test_mac
tests.platform.test_memory -> tests.platform.memory.test_amounts
tests.platform.test_mlx_import -> tests.platform.accelerator.test_mlx_import
tests.platform.test_ports -> tests.platform.network.test_ports
tests.platform.test_scratch -> tests.platform.cpu.test_scratch
tests.platform.test_timing -> tests.platform.process.test_timing
tests.platform.test_trials -> tests.platform.cpu.test_trials
tests.serving.test_branches -> tests.serving.prompt.test_branches
tests.serving.test_directory -> tests.serving.models.test_directory
tests.serving.test_measure -> tests.serving.requests.test_measure
tests.serving.test_patience -> tests.serving.engine_link.test_patience
tests.serving.test_poison -> tests.serving.engine_link.test_poison
tests.serving.test_remembered -> tests.serving.prompt.test_remembered
tests.serving.test_request -> tests.serving.requests.test_request
tests.serving.test_sampling -> tests.serving.requests.test_sampling
tests.serving.test_sharing -> tests.serving.requests.test_sharing
tests.serving.test_tool_grammar -> tests.serving.requests.test_tool_grammar
tests.shard -> tests.rank
tests.startup -> tests.cli
tests.startup.lean_driver -> tests.rank.lean_driver
tests.startup.test_commands -> tests.cli.test_commands
tests.startup.test_imports -> tests.cli.test_imports
tests.startup.test_lean_upstream -> tests.rank.test_lean_upstream
tests.startup.test_strings -> tests.cli.test_strings
tests.tensor -> tests.rank.tensor
"""

MOVED_NAMES = """
chorus.api.connections:Connection -> chorus.api.server.connections:ClientConnection
chorus.api.conversation:Conversation -> chorus.serving.requests.request:GenerationRequest
chorus.api.settings:ApiKey -> chorus.security.key_rules:ApiKey
chorus.api.settings:Limits -> chorus.config.sections:Limits
chorus.cli.commands:Entry -> chorus.cli.commands:CommandEntry
chorus.cli.serve:choose_transport -> chorus.transport.auto:choose_transport
chorus.cli.serve:engine_address -> chorus.deploy.programs:engine_address
chorus.cli.serve:engine_spec -> chorus.deploy.programs:engine_spec
chorus.cli.up_plan:wish_of -> chorus.deploy.nodes.plan:plan_request
chorus.cluster.agent_door:CARDS -> chorus.cluster.agent.peers:CARDS
chorus.cluster.agent_door:Door -> chorus.cluster.agent.door:AgentDoor
chorus.cluster.agent_door:FILES -> chorus.cluster.transfer.share:FILES
chorus.cluster.agent_door:PROTOCOLS -> chorus.cluster.agent.process:PROTOCOLS
chorus.cluster.agent_models:named_model -> chorus.models.resolve:named_model
chorus.cluster.config:ConfigError -> chorus.config.file:ConfigError
chorus.cluster.config:DeviceConfig -> chorus.config.sections:DeviceConfig
chorus.cluster.config:Loaded -> chorus.config.sources:LoadedSettings
chorus.cluster.config:Settings -> chorus.config.settings:Settings
chorus.cluster.config:Strategy -> chorus.config.strategies:Strategy
chorus.cluster.config:known_keys -> chorus.config.settings:known_keys
chorus.cluster.config_tree:Settings -> chorus.config.settings:Settings
chorus.cluster.config_tree:Strategy -> chorus.config.strategies:Strategy
chorus.cluster.config_tree:known_keys -> chorus.config.settings:known_keys
chorus.cluster.config_tree:nearest -> chorus.config.settings:nearest
chorus.cluster.config_tree:sections -> chorus.config.settings:sections
chorus.cluster.coordinator:Node -> chorus.cluster.coordinator.process:ConnectedNode
chorus.cluster.coordinator_sources:Wanted -> chorus.cluster.coordinator.sources:WantedFiles
chorus.cluster.costs:Link -> chorus.planning.costs:LinkSpeed
chorus.cluster.costs:Node -> chorus.planning.costs:Machine
chorus.cluster.hostfile:Host -> chorus.config.hostfile:HostEntry
chorus.cluster.planner:Wish -> chorus.planning.problem:PlanRequest
chorus.cluster.planner_wish:Wanted -> chorus.planning.problem:WantedParallel
chorus.cluster.planner_wish:Wish -> chorus.planning.problem:PlanRequest
chorus.cluster.ssh_shell:is_this_machine -> chorus.deploy.ssh.connect:is_this_machine
chorus.cluster.supervisor:Group -> chorus.deploy.supervisor:ProcessGroup
chorus.cluster.supervisor:Life -> chorus.platform.process.restarts:Life
chorus.cluster.supervisor:NEVER_SERVED -> chorus.platform.process.restarts:NEVER_SERVED
chorus.cluster.supervisor:RestartPolicy -> chorus.platform.process.restarts:RestartPolicy
chorus.cluster.supervisor:Restarts -> chorus.platform.process.restarts:Restarts
chorus.cluster.supervisor:describe_exit -> chorus.platform.process.restarts:describe_exit
chorus.cluster.supervisor:python -> chorus.platform.process.restarts:python
chorus.cluster.transfer:Share -> chorus.cluster.transfer.share:SharedModel
chorus.cluster.transfer_sources:Source -> chorus.cluster.transfer.sources:FileSource
chorus.cluster.trust_guard:Guard -> chorus.security.guard:MemberGuard
chorus.engine.leader:Stop -> chorus.engine.leader:StopLeader
chorus.engine.requests:Constraint -> chorus.text.grammar.client:Constraint
chorus.engine.scheduler:Limits -> chorus.engine.scheduling.scheduler:SchedulerLimits
chorus.engine.service:grammar_from_wire -> chorus.messages.engine:grammar_from_wire
chorus.frontend.answer:AnswerDelta -> chorus.serving.generation:AnswerDelta
chorus.frontend.answer:AnswerEnd -> chorus.serving.generation:AnswerEnd
chorus.frontend.choices:choice_seed -> chorus.serving.prepare:choice_seed
chorus.frontend.generation:answer_budget -> chorus.serving.prepare:answer_budget
chorus.frontend.messages:GenerationRequest -> chorus.messages.engine:Request
chorus.frontend.messages:submit_command -> chorus.messages.engine:request_to_wire
chorus.localai.engine_host:Launch -> chorus.localai.engine_host:EngineLaunch
chorus.localai.engine_host:State -> chorus.localai.engine_host:HostState
chorus.localai.loading:Loaded -> chorus.localai.loading:LoadedModel
chorus.localai.options:SamplingOptions -> chorus.localai.options:FixedSampling
chorus.models.hub:CachedModel -> chorus.models.values:CachedModel
chorus.models.hub:choose_weights -> chorus.models.hub.files:choose_weights
chorus.models.hub:description_files -> chorus.models.hub.files:description_files
chorus.platform.beats:State -> chorus.platform.process.beats:ProcessState
chorus.platform.rdma_checks:Wanted -> chorus.cluster.doctor.rdma:WantedRdma
chorus.shard.architectures:Architecture -> chorus.rank.pipeline.rules:PipelineRule
chorus.shard.architectures:SplitError -> chorus.planning.split:SplitError
chorus.shard.layout:hybrid_note -> chorus.transport.catalog:hybrid_note
chorus.shard.pipeline:SplitError -> chorus.planning.split:SplitError
chorus.shard.pipeline:check_split -> chorus.rank.pipeline.stage:check_boundaries
chorus.shard.split:BadSplit -> chorus.planning.split:SplitError
chorus.shard.split:check_split -> chorus.planning.split:check_layer_counts
chorus.shard.tensor:TensorError -> chorus.planning.split:SplitError
chorus.shard.tensor_rules.shares:TensorError -> chorus.planning.split:SplitError
chorus.shard.tensor_rules:Block -> chorus.models.architectures:SummedBlock
chorus.shard.tensor_rules:Heads -> chorus.models.architectures:Heads
chorus.shard.tensor_rules:Inner -> chorus.models.architectures:Inner
chorus.shard.tensor_rules:Rule -> chorus.models.architectures:TensorRule
chorus.shard.tensor_rules:TensorError -> chorus.planning.split:SplitError
chorus.text.grammar.source:Part -> chorus.messages.grammar:GrammarPart
chorus.text.parsers.members:Member -> chorus.text.parsers.toolkit.members:ObjectMember
chorus.text.parsers.outline:Request -> chorus.text.parsers.toolkit.outline:ParserOptions
chorus.text.parsers.values:Tool -> chorus.text.parsers.toolkit.values:ToolSchema
chorus.transport.collective:CannotJoin -> chorus.transport.meeting:CannotJoin
"""
"""`old.module:Name -> new.module:Name`: what went elsewhere than the rest of its module, or is called otherwise."""

TEXTS: dict[str, dict[str, str]] = {
    "tests/models/test_cli.py": {
        "from chorus.cli.models import app\n": "from chorus.cli import app\n",
        "invoke(app, list(arguments))": 'invoke(app, ["models", *arguments])',
    },
    "tests/localai/test_smollm2.py": {
        'assert not any("tool_call" in delta.content': 'assert not any("</tool_call>" in delta.content',
    },
    "tests/api/test_chat.py": {
        '"top_k": 7, "max_tokens": 12}': '"top_k": 7}',
        "sampling=defaults, context_length=100": "sampling=defaults, max_tokens=12, context_length=100",
    },
    "src/chorus/api/server/gate.py": {
        'getLogger("chorus.api.server.gate")': 'getLogger("chorus.api.access")',
    },
    "src/chorus/deploy/ssh/hosts.py": {
        'with_name("ssh_probe.py")': 'with_name("probe.py")',
    },
    "tests/api/test_engine_client.py": {
        "= Request(prompt=": '= Request(id="", prompt=',
        "stop_tokens=(2,))": "stop_tokens=frozenset({2}))",
        "Request((1,), 1000 * number, Sampling(seed=1))": 'Request("", (1,), 1000 * number, sampling=Sampling(seed=1))',
        "Progress((7,)), Progress((8,))": 'Progress("1:", (7,)), Progress("1:", (8,))',
    },
    "tests/api/test_grammar.py": {
        "Request((1,), 400, Sampling(seed=seed), tuple(tokenizer.eos_ids),": 'Request("1", (1,), 400, tokenizer.eos_ids, Sampling(seed=seed),',
        'request_to_wire("1", request).submit': "request_to_wire(request)",
    },
    "tests/cluster/harness.py": {
        '"-m", "chorus.cli.serve",': '"-m", "chorus.cli", "serve", "--cluster",',
    },
    "tests/cluster/test_agents.py": {
        '"no line to"': '"cannot reach"',
        "going on with this machine alone": "continuing with this machine alone",
    },
    "tests/deploy/test_one_device.py": {
        "(__file__).parent /": '(__file__).parents[1] / "config" /',
    },
    "tests/deploy/test_ssh.py": {
        '"agent", "ready$", *command]': '"agent", *command]',
        "flush=True); time.sleep": "flush=True); open('agent.ready', 'w').close(); time.sleep",
    },
    "tests/e2e/hardening/test_disk.py": {
        '"-m", "chorus.cli.serve",': '"-m", "chorus.cli", "serve", "--cluster",',
        '"agent", "ready$", *sleeper]': '"agent", *sleeper]',
        "flush=True); time.sleep": "flush=True); open('agent.ready', 'w').close(); time.sleep",
    },
    "tests/e2e/hosts/conftest.py": {
        "parents[2]": "parents[3]",
    },
    "tests/e2e/hosts/test_three_hosts.py": {
        '"chorus.cli.serve",': '"chorus.cli", "serve", "--cluster",',
    },
    "tests/engine/test_leader.py": {
        "def run(leader: Leader, *requests: Request) -> None:": "def run(leader: Leader, *requests: Request, constraints: dict[str, object] | None = None) -> None:",
        "scheduler.submit(request) is": "scheduler.submit(request, (constraints or {}).get(request.id)) is",
        (
            '            constraint=grammars.open(Grammar("json_schema", json.dumps(SCHEMA)), '
            "tokenizer.eos_ids),\n"
            "        )\n"
            "        for seed in range(8)\n"
            "    ]\n"
        ): (
            "        )\n"
            "        for seed in range(8)\n"
            "    ]\n"
            '    schema = Grammar("json_schema", json.dumps(SCHEMA))\n'
            "    constraints = {request.id: grammars.open(schema, tokenizer.eos_ids) for request in "
            "requests}\n"
        ),
        "run(leader, *requests, free)": "run(leader, *requests, free, constraints=constraints)",
        'run(leader, Request("1:a", (5,), 20,': 'request = Request("1:a", (5,), 20,',
        "seed=3), constraint=constraint))\n": ('seed=3))\n    run(leader, request, constraints={"1:a": constraint})\n'),
        ", constraint=slow)": ")",
        ", constraint=quick)": ")",
        ('        Request("1:free", (5,), 8),\n    )\n'): (
            '        Request("1:free", (5,), 8),\n        constraints={"1:slow": slow, "1:quick": quick},\n    )\n'
        ),
    },
    "tests/engine/test_not_ready.py": {
        "= Request(prompt=": '= Request(id="", prompt=',
    },
    "tests/planning/test_facts.py": {
        "from chorus.models import ModelError\n": "from chorus.models import ModelError, architectures\n",
        "from chorus.planning.tensor import TENSOR_ARCHITECTURES\n": "",
        "from chorus.rank import tensor as tensor_rules\n": "",
        'TENSOR_ARCHITECTURES - {"gemma3"}}': "architectures.named() if architectures.tensor_rule(name)}",
        "modules == set(tensor_rules.registered())": "all(architectures.tensor_rule(name) for name in modules)",
    },
    "tests/planning/test_plan_command.py": {
        "from chorus.cli.config import app as config_app\n": "from chorus.cli import app\n",
        'app = typer.Typer()\napp.command()(plan)\napp.command()(preshard)\napp.add_typer(config_app, name="config")\n': "",
        'run("preshard"': 'run("models", "preshard"',
        "(__file__).parent /": '(__file__).parents[1] / "config" /',
        "to serve it so: ": "to serve it like this: ",
    },
    "tests/planning/test_planner.py": {
        (
            '    modules = ("planner", "planner_nodes", "facts", "facts_remote", "config", "hostfile", '
            '"profile", "profile_links")\n'
        ): (
            '    modules = ("planning.planner", "planning.nodes", "planning.facts", "config.sources", '
            '"config.hostfile")\n'
            '    modules += ("cluster.profile.machine", "cluster.profile.links", "models.preshard.folder")\n'
        ),
        (
            '[*(f"import chorus.cluster.{name}" for name in modules), "import chorus.models.preshard", "import sys"]'
        ): '[*(f"import chorus.{name}" for name in modules), "import sys"]',
        "import PlanRequest\n": "import PlanRequest, Problem\n",
        "best_split(facts, stages, link, work)": "best_split(Problem(facts, nodes, link, work), stages)",
    },
    "tests/planning/test_planner_hybrid.py": {
        "import PlanRequest\n": "import PlanRequest, Problem\n",
        "group_tables(facts, of_equals(tables, members, None), shares, link, work)": "group_tables(Problem(facts, nodes, link, work), of_equals(tables, members, None), shares)",
        "group_tables(facts, [tables], (share, facts.groups - share), QUICK, work)": "group_tables(Problem(facts, pair, QUICK, work), [tables], (share, facts.groups - share))",
    },
    "tests/rank/tensor/driver.py": {
        "divide.TensorError": "divide.SplitError",
        "parts.Share": "parts.RankShare",
    },
    "tests/rank/tensor/test_group.py": {
        "from chorus.messages.proto import rank_pb2 as wire": "from chorus.messages import load as wire",
    },
    "tests/rank/tensor/test_jaccl.py": {
        "from chorus.messages.proto import rank_pb2 as wire": "from chorus.messages import load as wire",
        "import join_group\n": ("import connect\nfrom chorus.transport.links import Inbox\n"),
        'join_group(rank, request_of(content, coordinator="10.0.0.1:32323"))': 'connect(rank, request_of(content, coordinator="10.0.0.1:32323"), Inbox())',
        "join_group(0, request_of(ROWS))": "connect(0, request_of(ROWS), Inbox())",
        "join_group(1, request_of(ROWS))": "connect(1, request_of(ROWS), Inbox())",
        'join_group(0, wire.LoadRequest(transport="jaccl", ranks=2))': 'connect(0, wire.LoadRequest(transport="jaccl", ranks=2, split=(4,), weights=(1, 1)), Inbox())',
    },
    "tests/rank/tensor/test_parity.py": {
        "parents[2]": "parents[3]",
    },
    "tests/rank/test_registration.py": {
        "from chorus.rank.pipeline import rules\n": "from chorus.models import architectures\n",
        "rules.": "architectures.",
        "(rules,": "(architectures,",
    },
    "tests/transport/slow_link_driver.py": {
        ("    from chorus.transport.channel import secure\n\n    secure(None, plaintext=True)\n"): "",
    },
    "tests/transport/test_packing.py": {
        "FrameSender(address, 5, None, ": "FrameSender(address, 5, compression=",
    },
}
"""Besides: by file, as it is called now, what stands for what. For paths that are counted from a file, for calls and
commands that take something else now, and for messages that changed.
"""

FOLDERS = {
    "src/chorus/api/server": "The listening socket, and what stands around every request.",
    "src/chorus/api/openai": "OpenAI's protocols: chat, completions, responses, embeddings.",
    "src/chorus/cluster/agent": "The process that every node runs: it starts and ends ranks for a coordinator.",
    "src/chorus/cluster/coordinator": "The node that serves: who is there, who has which files, who does what.",
    "src/chorus/cluster/profile": "What a machine and its links can do, measured.",
    "src/chorus/cluster/transfer": "Model files from node to node.",
    "src/chorus/config": "The one tree of settings, where they come from, and the forms that older projects gave them.",
    "src/chorus/deploy": "What starts processes and keeps them alive, here and on other machines.",
    "src/chorus/deploy/hostfile": "Models over the workers of a hostfile, each started by hand on its machine.",
    "src/chorus/deploy/nodes": "A model over the nodes of a cluster.",
    "src/chorus/deploy/ssh": "A cluster brought up, looked after and taken down from one machine, by SSH.",
    "src/chorus/messages": "What travels between processes: one file per link, with its conversions.",
    "src/chorus/models/gguf": "GGUF files, read and converted to the Hugging Face form.",
    "src/chorus/models/hub": "Models on Hugging Face: whole, or the part that one machine needs.",
    "src/chorus/models/preshard": "A model cut into one folder per rank.",
    "src/chorus/planning": "Who holds what: model facts, costs, strategies, the planner. No process.",
    "src/chorus/cluster/doctor": "What `chorus doctor` looks at.",
    "src/chorus/platform/process": "The life of a process: what it writes, how it shows that it lives, how it ends.",
    "src/chorus/rank": "One rank: loads its part of the model, runs steps on it, owns its caches.",
    "src/chorus/rank/cache": "The keys, values and states of sequences, alone and in batches.",
    "src/chorus/rank/pipeline": "A run of layers of any mlx-lm decoder.",
    "src/chorus/rank/tensor": "A slice of every layer.",
    "src/chorus/rank/upstream": "The only modules that know mlx-lm from the inside.",
    "src/chorus/security": "Who is who: the cluster's token and authority, identities of nodes, API keys.",
    "src/chorus/serving": "What every front end shares: prompts, text over the engine link, answers.",
    "src/chorus/serving/prompt": "From a conversation to the prompt that a model's template makes of it.",
    "src/chorus/text/parsers/toolkit": "What parsers and grammars of tool calls are made of.",
    "src/chorus/platform/accelerator": "Which accelerator MLX computes on here, with which number type, and what it must find to be imported.",
    "src/chorus/platform/cpu": "What MLX needs to be fast on a CPU: a real BLAS, kernels for packed weights, the right number of threads.",
    "src/chorus/platform/memory": "How much memory there is for a model, who has booked it, and when freed memory goes back.",
    "src/chorus/platform/network": "Addresses, cables and ports of this machine, and why a connection failed.",
    "src/chorus/platform/storage": "Where files of ours lie, how they get to a disk whole, and how many may be open.",
    "src/chorus/serving/engine_link": "The engine link as a front end has it: one session, how far requests are, what they await when the engine is lost.",
    "src/chorus/serving/models": "The models of a front end: which there are, who owns them, and what the preparation of a request sees of one.",
    "src/chorus/serving/requests": "What a client asks for, whichever protocol it came in: one form, with tools, sampling, grammars and limits.",
    "src/chorus/engine/lifecycle": "A leader's life: its group forms, loads, warms up and serves, and forms again after a loss.",
    "src/chorus/engine/ranks": "The other ranks as the leader sees them: greeted, sent every step, waited for, traced.",
    "src/chorus/engine/scheduling": "Which sequences advance next, and by how many tokens, decided without a tensor and without MLX.",
    "tests/cli": "",
    "tests/cluster": "",
    "tests/config": "",
    "tests/deploy": "",
    "tests/e2e/hardening": "",
    "tests/e2e/hosts": "",
    "tests/planning": "",
    "tests/rank": "",
    "tests/rank/pipeline": "",
    "tests/rank/tensor": "",
    "tests/security": "",
    "tests/serving": "",
    "tests/platform/accelerator": "",
    "tests/platform/cpu": "",
    "tests/platform/memory": "",
    "tests/platform/network": "",
    "tests/platform/process": "",
    "tests/platform/storage": "",
    "tests/serving/engine_link": "",
    "tests/serving/models": "",
    "tests/serving/prompt": "",
    "tests/serving/requests": "",
    "tests/engine/lifecycle": "",
    "tests/engine/prefix": "",
    "tests/engine/ranks": "",
    "tests/engine/scheduling": "",
}
"""Packages that were made, with what they say of themselves."""

NEW_FILES = {
    "tests/deploy/conftest.py": (
        '"""Nodes, as the tests of the cluster have them."""\n'
        "\n"
        "from tests.cluster.conftest import nodes, tiny\n"
        "\n"
        '__all__ = ["nodes", "tiny"]\n'
    ),
}
"""Fixtures that tests of two folders use now."""

ROOT = Path(__file__).parent.parent
HISTORY = {Path("scripts/reshape.py"), Path("tests/regrouped.md"), Path("CHANGELOG.md")}
"""They tell of names that are no more."""

TEXT_FILES = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".json", ".sh", ".cfg", ".lark", ".patch", ""}


def table(text: str) -> dict[str, str]:
    lines = [line.split("#")[0] for line in text.strip().splitlines()]
    return {old.strip(): new.strip() for old, _, new in (line.partition("->") for line in lines) if new}


MODULES = table(MOVED_MODULES)
NAMES = {tuple(old.split(":")): tuple(new.split(":")) for old, new in table(MOVED_NAMES).items()}


def parents(module: str) -> list[str]:
    """The module itself, then its packages."""
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def module_of(path: Path) -> str:
    """A file below a checkout as a dotted name; packages are called like their folders."""
    parts = list(path.with_suffix("").parts)
    if parts[0] == "src":
        parts = parts[1:]
    return ".".join(parts)


TODAY = [module_of(file.relative_to(ROOT)) for top in ("src", "tests") for file in (ROOT / top).rglob("*.py")]
NEW = {name for module in (*MODULES.values(), *(new for new, _ in NAMES.values()), *TODAY) for name in parents(module)}


def moved(name: str) -> str:
    """The new form of a dotted name: a module, or something in one."""
    for prefix in parents(name):
        rest = name[len(prefix) :]
        first = rest.split(".")[1] if rest else ""
        if (prefix, first) in NAMES:
            module, new = NAMES[prefix, first]
            return f"{module}.{new}" + rest[len(first) + 1 :]
        if prefix in NEW and (prefix not in MODULES or not rest):
            return name
        if prefix in MODULES:
            return MODULES[prefix] + rest
    return name


def moved_import(module: str, name: str) -> str:
    """The new form of `from module import name`, where a module may have become the folder that it is in now."""
    whole = f"{module}.{name}"
    inside = MODULES.get(whole, "")
    return inside if inside.startswith(f"{whole}.") else moved(whole)


def path_of(module: str) -> Path:
    path = Path(*module.split("."))
    return Path("src") / path if module.split(".")[0] == "chorus" else path


def new_place(path: Path) -> Path:
    """Where a file of a checkout belongs."""
    if path.suffix != ".py":
        return new_place(path.parent / "__init__.py").parent / path.name
    module = module_of(path)
    if module in MODULES:
        return path_of(MODULES[module]).with_suffix(path.suffix)
    if module in NEW or (path.name == "__init__.py" and module.removesuffix(".__init__") in NEW - set(MODULES)):
        return path
    for package in parents(module)[1:]:
        if package in MODULES and package not in NEW:
            return path_of(MODULES[package] + module[len(package) :]).with_suffix(path.suffix)
        if package in NEW:
            break
    return path


class Rewriter:
    """One Python file: its imports, and the uses of what is called otherwise now."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._renamed: dict[str, str] = {}
        self._used = {token.string for token in self._tokens() if token.type == tokenize.NAME}

    def _tokens(self) -> list[tokenize.TokenInfo]:
        return list(tokenize.generate_tokens(io.StringIO(self._text).readline))

    def rewritten(self) -> str:
        lines = self._text.splitlines(keepends=True)
        imports = [node for node in ast.walk(ast.parse(self._text)) if isinstance(node, ast.ImportFrom)]
        for node in sorted(imports, key=lambda node: -node.lineno):
            if node.level or not node.module or node.module.split(".")[0] not in ("chorus", "tests"):
                continue
            new = self._import(node)
            if new is not None:
                assert node.end_lineno is not None
                indent = " " * node.col_offset
                last = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode()
                lines[node.lineno - 1 : node.end_lineno] = [
                    *(f"{indent}{line}\n" for line in new[:-1]),
                    f"{indent}{new[-1]}{last}",
                ]
        self._text = "".join(lines)
        if self._renamed:
            self._rename()
        return self._text

    def _import(self, node: ast.ImportFrom) -> list[str] | None:
        assert node.module
        lines: dict[str, list[str]] = {}
        changed = False
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            new = moved_import(node.module, alias.name)
            if new == whole:
                lines.setdefault(node.module, []).append(alias.name + (f" as {alias.asname}" if alias.asname else ""))
                continue
            changed = True
            module, _, name = new.rpartition(".")
            bound = alias.asname or alias.name
            if alias.asname or name == alias.name:
                text = name + (f" as {alias.asname}" if alias.asname and alias.asname != name else "")
            elif name in self._used:
                text = f"{name} as {bound}"
            else:
                text = name
                self._renamed[bound] = name
            lines.setdefault(module, []).append(text)
        if not changed:
            return None
        return [f"from {module} import {', '.join(names)}" for module, names in lines.items()]

    def _rename(self) -> None:
        """What an import binds under another name now. Attributes and keywords of that name are something else."""
        lines = self._text.splitlines(keepends=True)
        tokens = [token for token in self._tokens() if token.type not in (tokenize.NL, tokenize.COMMENT)]
        places = []
        for before, token, after in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
            if token.type == tokenize.STRING and "f" in token.string.split(token.string[-1])[0].lower():
                places.append(token)
            if token.type != tokenize.NAME or token.string not in self._renamed:
                continue
            if before and before.string in (".", "import", "as"):
                continue
            if after and after.string == "=" and before and before.string in ("(", ","):
                continue
            places.append(token)
        for token in reversed(places):
            (row, column), (last, _) = token.start, token.end
            if token.type == tokenize.STRING:
                lines[row - 1 : last] = [self._in_braces("".join(lines[row - 1 : last]))]
                continue
            line = lines[row - 1]
            lines[row - 1] = line[:column] + self._renamed[token.string] + line[token.end[1] :]
        self._text = "".join(lines)

    def _in_braces(self, text: str) -> str:
        """What is used inside an f-string, which Python 3.11 sees as one token."""
        for old, new in self._renamed.items():
            text = re.sub(rf"(\{{[^{{}}\n]*?)(?<![.\w]){old}\b(?=[.(])", rf"\g<1>{new}", text)
        return text


DOTTED = re.compile(r"(?<![\w./])(?:chorus|tests)(?:\.[A-Za-z_]\w*)+")
SLASHED = re.compile(r"(?<![\w/])(src/chorus|chorus|tests)((?:/[a-z_0-9]+)+)(\.py\b|/|\b)")


IMPORT_IN_TEXT = re.compile(r"(?:\b|(?<=\\n))from ((?:chorus|tests)[\w.]*) import (\w+)")


def imported_in_text(match: re.Match[str]) -> str:
    """`from chorus.x import y` inside a string, for another interpreter."""
    module, _, name = moved_import(match[1], match[2]).rpartition(".")
    return f"from {module} import {name}" + (f" as {match[2]}" if name != match[2] else "")


def dotted(match: re.Match[str]) -> str:
    return moved(match[0])


def slashed(match: re.Match[str]) -> str:
    root, path, end = match.groups()
    module = root.removeprefix("src/") + path.replace("/", ".")
    new = moved(module)
    if new == module or (not end and root != "src/chorus" and module not in MODULES):
        return match[0]
    return root + "/" + "/".join(new.split(".")[1:]) + end


def rewrite(path: Path) -> None:
    try:
        old = path.read_text()
    except UnicodeDecodeError:
        return
    text = old
    if path.suffix == ".py":
        text = Rewriter(text).rewritten()
        text = re.sub(r"^(\s*import )(chorus(?:\.\w+)+)", lambda found: found[1] + moved(found[2]), text, flags=re.M)
    text = SLASHED.sub(slashed, DOTTED.sub(dotted, IMPORT_IN_TEXT.sub(imported_in_text, text)))
    for old_text, new_text in TEXTS.get(str(path), {}).items():
        text = text.replace(old_text, new_text)
    if text != old:
        path.write_text(text)


def files(root: Path) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=root, check=True, capture_output=True
    )
    return [Path(line) for line in listed.stdout.decode().splitlines() if (root / line).is_file()]


def move_files(root: Path) -> None:
    for path in files(root):
        if path.parts[0] not in ("src", "tests"):
            continue
        place = new_place(path)
        if place == path or (root / place).exists():
            continue
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(root / path, root / place)
    for folder in sorted((root / top for top in ("src", "tests")), key=str):
        for empty in sorted(folder.rglob("*/"), reverse=True):
            left = [entry for entry in empty.iterdir() if entry.name != "__pycache__"]
            if not left or ([entry.name for entry in left] == ["__init__.py"] and not left[0].read_text().strip()):
                shutil.rmtree(empty)
    for name, words in FOLDERS.items():
        init = root / name / "__init__.py"
        if init.parent.exists() and (not init.exists() or not init.read_text().strip()):
            init.write_text(f'"""{words}"""\n' if words else "")
    for name, text in NEW_FILES.items():
        if (root / name).parent.exists() and not (root / name).exists():
            (root / name).write_text(text)


def main() -> None:
    root = Path(sys.argv[1]).resolve()
    move_files(root)
    os.chdir(root)
    for path in files(root):
        if path.suffix in TEXT_FILES and path not in HISTORY and "_pb2" not in path.name:
            rewrite(path)


if __name__ == "__main__":
    main()
