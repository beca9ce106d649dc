"""LocalAI's Backend service, method by method."""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import NoReturn

import grpc

from chorus.localai.engine_host import HostState
from chorus.localai.errors import BadRequest, LoadFailed, NotServing, in_options
from chorus.localai.loading import LoadedModel, Models
from chorus.localai.prepare import check_tokens, embedding_tokens, is_chat, prepare, prompt_tokens
from chorus.localai.replies import ReplyWriter, whole
from chorus.messages.proto import engine_pb2, localai_pb2_grpc
from chorus.messages.proto import localai_pb2 as wire
from chorus.serving.errors import EngineError, EngineLost, EngineOverloaded, RequestRejected
from chorus.serving.generation import AnswerDelta, AnswerEnd, Generation
from chorus.serving.models.embedding import NoEmbeddings, embedding_of, finish
from chorus.serving.requests import measure
from chorus.serving.requests.measure import BadField
from chorus.serving.workers import Busy

log = logging.getLogger(__name__)

EMBED_SECONDS = 600.0
_STATES = {
    HostState.STARTING: wire.StatusResponse.BUSY,
    HostState.READY: wire.StatusResponse.READY,
    HostState.RECOVERING: wire.StatusResponse.BUSY,
    HostState.FAILED: wire.StatusResponse.ERROR,
}


class BackendService(localai_pb2_grpc.BackendServicer):
    def __init__(self, models: Models) -> None:
        self._models = models
        self._numbers = itertools.count(1)
        self._metrics = wire.MetricsResponse()
        self._told_of_path = False

    async def Health(self, request: wire.HealthMessage, context: grpc.aio.ServicerContext) -> wire.Reply:
        return wire.Reply(message=b"OK")

    async def LoadModel(self, request: wire.ModelOptions, context: grpc.aio.ServicerContext) -> wire.Result:
        try:
            await self._models.load(request)
        except LoadFailed as error:
            log.error("cannot load %s: %s", request.Model, error)
            return wire.Result(success=False, message=in_options(str(error)))
        return wire.Result(
            success=True, message="Model loaded successfully"
        )  # word for word what LocalAI's tests expect

    async def Free(self, request: wire.HealthMessage, context: grpc.aio.ServicerContext) -> wire.Result:
        await self._models.free()
        return wire.Result(success=True, message="freed")

    async def Predict(self, request: wire.PredictOptions, context: grpc.aio.ServicerContext) -> wire.Reply:
        async with _outcomes(context):
            replies = [reply async for reply in self._replies(request, context)]
            return whole((reply for reply, _ in replies), cut_off=replies[-1][1])

    async def PredictStream(
        self, request: wire.PredictOptions, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[wire.Reply]:
        async with _outcomes(context), aclosing(self._replies(request, context)) as replies:
            async for reply, _ in replies:
                yield reply

    async def TokenizeString(
        self, request: wire.PredictOptions, context: grpc.aio.ServicerContext
    ) -> wire.TokenizationResponse:
        async with _outcomes(context):
            loaded = await self._loaded(request.ModelIdentity, context)
            tokens = await loaded.model.workers.run(request.ByteSize(), lambda: prompt_tokens(loaded, request))
            return wire.TokenizationResponse(length=len(tokens), tokens=tokens)

    async def Detokenize(
        self, request: wire.DetokenizeRequest, context: grpc.aio.ServicerContext
    ) -> wire.DetokenizeResponse:
        async with _outcomes(context):
            loaded = await self._loaded("", context)
            tokens = list(request.tokens)
            measure.count("tokens", len(tokens), loaded.limits.max_detokenize_tokens, "tokens")
            check_tokens(tokens, loaded.capacity.vocabulary, "tokens")
            text = await loaded.model.workers.run(
                len(tokens), lambda: loaded.model.tokenizer.decode(tokens, skip_special=False)
            )
            return wire.DetokenizeResponse(content=text)

    async def Embedding(self, request: wire.PredictOptions, context: grpc.aio.ServicerContext) -> wire.EmbeddingResult:
        async with _outcomes(context):
            loaded = await self._loaded(request.ModelIdentity, context)
            try:
                embedding = embedding_of(loaded.path, loaded.embeddings, loaded.limits.pooling)
            except NoEmbeddings as error:
                await _abort(context, grpc.StatusCode.UNIMPLEMENTED, error)
            tokens = await loaded.model.workers.run(request.ByteSize(), lambda: embedding_tokens(loaded, request))
            pooled = await loaded.host.embed(tokens, embedding.pooling, EMBED_SECONDS)
            values = finish(pooled, embedding, None)
            return wire.EmbeddingResult(
                embeddings=values, dim=len(values), tokens=len(tokens), prompt_tokens=len(tokens)
            )

    async def Status(self, request: wire.HealthMessage, context: grpc.aio.ServicerContext) -> wire.StatusResponse:
        loaded = self._models.current
        if loaded is None:
            if self._models.loading:
                return wire.StatusResponse(state=wire.StatusResponse.BUSY)
            failed = self._models.failure is not None
            return wire.StatusResponse(state=wire.StatusResponse.ERROR if failed else wire.StatusResponse.UNINITIALIZED)
        try:
            seen = await loaded.host.describe()
        except NotServing:
            seen = engine_pb2.Description()
        state = _STATES[loaded.host.state]
        if state == wire.StatusResponse.READY and seen.state != engine_pb2.READY:
            # It replaces a rank, or is lost and nobody has noticed yet.
            state = wire.StatusResponse.BUSY
        return wire.StatusResponse(state=state, memory=_memory(seen))

    async def GetMetrics(self, request: wire.MetricsRequest, context: grpc.aio.ServicerContext) -> wire.MetricsResponse:
        """Of the request that finished last."""
        return self._metrics

    async def _replies(
        self, request: wire.PredictOptions, context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[tuple[wire.Reply, bool]]:
        """Each with whether it is the last of an answer that its limit cut off."""
        loaded = await self._loaded(request.ModelIdentity, context)
        self._note_path(request)
        label = f"localai-{next(self._numbers)}"
        generation = await prepare(loaded, request, label)
        try:
            async with aclosing(self._generate(generation, loaded, label, is_chat(request))) as replies:
                async for reply in replies:
                    yield reply
        except grpc.aio.UsageError:
            raise NotServing("the model was freed meanwhile") from None

    def _note_path(self, request: wire.PredictOptions) -> None:
        """Once: the path comes from the model's file, with every request."""
        if request.PromptCachePath and not self._told_of_path:
            self._told_of_path = True
            log.warning(
                "prompt_cache_path is ignored: prefixes are stored in memory, and on disk with option cache_disk"
            )

    async def _generate(
        self, generation: Generation, loaded: LoadedModel, label: str, chat: bool
    ) -> AsyncGenerator[tuple[wire.Reply, bool]]:
        writer = ReplyWriter(loaded.model.tokenizer, len(generation.prompts[0]), chat)
        async with aclosing(generation):
            async for event in generation:
                match event:
                    case AnswerDelta():
                        if (reply := writer.chunk(event)) is not None:
                            yield reply, False
                    case AnswerEnd():
                        self._metrics = _metrics(event)
                        _log_end(label, event, self._metrics.tokens_per_second)
                        yield writer.last(event), event.reason == "length"

    async def _loaded(self, identity: str, context: grpc.aio.ServicerContext) -> LoadedModel:
        loaded = self._models.current
        if loaded is None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self._why_none())
        assert loaded is not None
        if identity and identity != loaded.plan.identity:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"model identity mismatch: {loaded.plan.identity!r} is loaded here, the request is for {identity!r}",
            )
        return loaded

    def _why_none(self) -> str:
        if self._models.loading:
            return "the model is still loading: try again when Status says READY"
        if self._models.failure is not None:
            return f"no model is loaded, for the last one failed: {in_options(self._models.failure)}"
        return "no model is loaded: call LoadModel first"


@asynccontextmanager
async def _outcomes(context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
    """Errors as the status codes LocalAI tells apart: the caller's fault, ours, or a matter of trying again."""
    try:
        yield
    except (BadRequest, BadField) as error:
        await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, error)
    except RequestRejected as error:
        named = BadRequest(f"{error.field}: {error}") if error.field else error
        await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, named)
    except (EngineOverloaded, Busy) as error:
        await _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, error)
    except (NotServing, EngineLost) as error:
        await _abort(context, grpc.StatusCode.UNAVAILABLE, error)
    except EngineError as error:
        await _abort(context, grpc.StatusCode.INTERNAL, error)


async def _abort(context: grpc.aio.ServicerContext, code: grpc.StatusCode, error: Exception) -> NoReturn:
    log.warning("request refused or failed (%s): %s", code.name, error)
    await context.abort(code, str(error))
    raise AssertionError("abort raises")


def _memory(description: engine_pb2.Description) -> wire.MemoryUsageData:
    breakdown = {f"rank {rank.rank}": rank.memory_bytes for rank in description.ranks}
    return wire.MemoryUsageData(total=sum(breakdown.values()), breakdown=breakdown)


def _metrics(end: AnswerEnd) -> wire.MetricsResponse:
    timing = end.timing
    moving = timing.generated_tokens > 1 and timing.generation_seconds > 0
    return wire.MetricsResponse(
        tokens_per_second=(timing.generated_tokens - 1) / timing.generation_seconds if moving else 0.0,
        tokens_generated=end.usage.completion_tokens,
        prompt_tokens_processed=timing.prompt_tokens - timing.cached_tokens,
    )


def _log_end(label: str, end: AnswerEnd, speed: float) -> None:
    fields = {
        "prompt_tokens": end.usage.prompt_tokens,
        "cached_tokens": end.usage.cached_tokens,
        "generated_tokens": end.usage.completion_tokens,
        "tokens_per_second": speed,
        "finish": end.reason,
    }
    log.info("request %s", label, extra={"fields": fields})
