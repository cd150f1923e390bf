"""From an admitted call to the last byte of its response, streamed or whole. Knows no wire family and no policy."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..gateway.calls import Call
from ..gateway.gateway import Gateway, Run
from ..gateway.route import HEADER
from ..types import ServiceTier
from .context import Context
from .disconnect import ClientGoneError, UntilGone
from .replies import CLIENT_GONE, as_api_error
from .sse import EventStream
from .wire import Collected, Envelope, Tally, Wire


class Generation(Response):
    """Runs `call` and answers in the format of `wire`.

    An error before the first chunk is raised, and becomes a normal error response; one after it ends the stream
    with an error event. A client that leaves ends the work at once.
    """

    def __init__(self, gateway: Gateway, call: Call, wire: Wire, *, stream: bool) -> None:
        super().__init__(media_type="application/json")
        self._gateway = gateway
        self._call = call
        self._wire = wire
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call, context = self._call, Context.of(scope)
        context.late_headers = lambda: self._gateway.quotas.headers(call.principal)
        model, route = self._gateway.route(call)
        context.model = model
        if route is not None:
            context.headers[HEADER] = route.header
        tier = context.tier = self._gateway.tier(call.service_tier, call.principal)
        if self._stream:
            await self._answer_in_events(context, model, tier, receive, send)
            return
        async with UntilGone(receive), self._gateway.run(call, model, tier) as run:
            context.tier = run.tier
            body = await self._collect(run)
        await Response(body, media_type="application/json")(scope, receive, send)

    async def _answer_in_events(
        self, context: Context, model: str, tier: ServiceTier, receive: Receive, send: Send
    ) -> None:
        stream: EventStream | None = None
        try:
            async with UntilGone(receive), self._gateway.run(self._call, model, tier) as run:
                context.tier = run.tier
                stream = EventStream(send)
                await stream.start()
                await self._pump(run, stream)
        except ClientGoneError:
            if stream is None:
                raise
            context.outcome = CLIENT_GONE
            stream.abandon()
        except Exception as exc:
            if stream is None:
                raise
            error = as_api_error(exc, context.id)
            context.outcome = error.status
            await stream.fail(error)
        except BaseException:  # the server cancels us at the end of its patience
            if stream is not None:
                stream.abandon()
            raise
        else:
            await stream.finish()

    async def _pump(self, run: Run, stream: EventStream) -> None:
        wire, tally = self._wire, Tally(self._call.n)
        envelope = Envelope.of(self._call.id, run)
        async for chunk in run:
            if events := wire.events(envelope, chunk):
                await stream.write(events)
            if chunk.finish_reason is not None:
                tally.add(chunk)
        if events := wire.last_events(envelope, tally):
            await stream.write(events)

    async def _collect(self, run: Run) -> bytes:
        tally = Tally(self._call.n)
        texts: list[list[str]] = [[] for _ in range(self._call.sequences)]
        done = [Collected("", None) for _ in range(self._call.sequences)]
        async for chunk in run:
            texts[chunk.index].append(chunk.text)
            if chunk.finish_reason is not None:
                done[chunk.index].finish_reason = chunk.finish_reason
                tally.add(chunk)
        for sequence, parts in zip(done, texts, strict=True):
            sequence.text = "".join(parts)
        return self._wire.body(Envelope.of(self._call.id, run), done, tally)
