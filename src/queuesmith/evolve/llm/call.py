"""Questions to an OpenAI-compatible endpoint that may be slow, wrong, hostile or away.

Each request has a deadline for the whole of it, and so has the body that is read a size; a question
is asked a limited number of times, and every attempt is counted. What an attempt without an answer
may have cost is taken to be the most it can have cost.
"""

import asyncio
import importlib
import random
from collections.abc import AsyncIterator, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from queuesmith.errors import ConfigError
from queuesmith.evolve.llm.budget import Budget, Usage
from queuesmith.evolve.llm.endpoint import Endpoint
from queuesmith.evolve.llm.prompt import Prompt
from queuesmith.evolve.llm.reply import Failure, Refused, Reply, read_answer, refusal, said

#: Bytes of an answer's body, and of an error's.
MAX_BODY = 4_000_000
MAX_ERROR = 20_000
#: Seconds between two attempts at most, whatever the endpoint asks for.
MAX_WAIT = 60.0

_Result = TypeVar("_Result")


def ask(
    endpoint: Endpoint, prompts: Sequence[Prompt], budget: Budget, *, at_once: int = 1
) -> list[Reply]:
    """Ask questions, some of them at the same time; return a reply to each, in order.

    Raises
    ------
    ConfigError
        If the package `openai` is not installed.
    """
    openai = import_openai()
    return _run(_ask_all(openai, endpoint, prompts, budget, at_once))


def import_openai() -> Any:
    """Import the package `openai`, which is an extra."""
    try:
        return importlib.import_module("openai")
    except ImportError as error:
        raise ConfigError(
            f"the proposer llm needs the package openai ({error}); install it with "
            "`pip install 'queuesmith[llm]'`"
        ) from None


def _run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end, in a notebook too, where an event loop is running already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


async def _ask_all(
    openai: Any, endpoint: Endpoint, prompts: Sequence[Prompt], budget: Budget, at_once: int
) -> list[Reply]:
    turn = asyncio.Semaphore(at_once)
    async with _client(openai, endpoint) as client:

        async def one(prompt: Prompt) -> Reply:
            async with turn:
                return await _ask(openai, client, endpoint, prompt, budget)

        return list(await asyncio.gather(*(one(prompt) for prompt in prompts)))


@asynccontextmanager
async def _client(openai: Any, endpoint: Endpoint) -> AsyncIterator[Any]:
    http_client = openai.DefaultAsyncHttpxClient(
        follow_redirects=False,  # a key goes where it was meant to go, and nowhere else
        event_hooks={"response": [_refuse_errors]},
    )
    async with openai.AsyncOpenAI(
        base_url=endpoint.base_url,
        api_key=endpoint.key or "none",
        timeout=endpoint.options.call_seconds,
        max_retries=0,
        http_client=http_client,
    ) as client:
        yield client


async def _refuse_errors(response: Any) -> None:
    """Read what comes with an error, up to a limit, before the package reads all of it."""
    if not 200 <= response.status_code < 300:
        body = b""
        async for part in response.aiter_bytes():
            body += part
            if len(body) > MAX_ERROR:
                break
        raise Refused(response.status_code, dict(response.headers), body[:MAX_ERROR])


async def _ask(
    openai: Any, client: Any, endpoint: Endpoint, prompt: Prompt, budget: Budget
) -> Reply:
    """Ask one question until there is an answer, or no sense or no budget in asking again."""
    worst = budget.worst(prompt.text, endpoint.options.answer_tokens)
    used, attempts = Usage(), list[str]()
    problem, hopeless = "", False
    for attempt in range(endpoint.options.attempts):
        if reason := budget.refuses(worst):
            problem = f"no budget for {'another attempt' if attempt else 'a question'}: {reason}"
            break
        budget.spend(worst)  # reserved, for as long as it is under way
        cost = worst
        try:
            seconds = min(endpoint.options.call_seconds, budget.seconds)
            reply = await _attempt(openai, client, endpoint, prompt, seconds)
            if reply.tokens is not None:
                cost = Usage(1, sum(reply.tokens), budget.prices.cost(*reply.tokens))
            return replace(reply, usage=used + cost, attempts=(*attempts, "answered"))
        except Failure as failure:
            if not failure.billed:
                cost = Usage(calls=1)
            problem = failure.what
            attempts.append(problem)
            hopeless = failure.hopeless
            again, wait = failure.again, failure.wait
        finally:
            budget.settle(worst, cost)
            used += cost
        if not again or attempt + 1 == endpoint.options.attempts:
            break
        # Spread out, so that many who were refused together do not come back together.
        wait = max(wait, endpoint.options.backoff_seconds * 2**attempt * random.uniform(0.5, 1.5))
        if wait > MAX_WAIT:
            problem += f"; it asks to wait for {wait:.0f} s, more than {MAX_WAIT:.0f} s"
            break
        if wait >= budget.seconds:
            problem += "; no budget to wait: wall_seconds"
            break
        await asyncio.sleep(wait)
    return Reply(problem=problem, usage=used, attempts=tuple(attempts), hopeless=hopeless)


async def _attempt(
    openai: Any, client: Any, endpoint: Endpoint, prompt: Prompt, seconds: float
) -> Reply:
    """Send one request and read its answer; raise `Failure` without one."""
    asked: dict[str, Any] = {"model": endpoint.model, "messages": prompt.messages}
    if endpoint.options.temperature is not None:
        asked["temperature"] = endpoint.options.temperature
    body = bytearray()
    try:
        async with (
            asyncio.timeout(seconds),
            client.chat.completions.with_streaming_response.create(
                **asked, extra_body={endpoint.options.limit_field: endpoint.options.answer_tokens}
            ) as response,
        ):
            async for part in response.iter_bytes():
                body += part
                if len(body) > MAX_BODY:
                    raise Failure(
                        f"the answer has more than {MAX_BODY:,} bytes", again=False, billed=True
                    )
    except Failure:
        raise
    except Refused as error:
        raise refusal(endpoint.key, error) from None
    except (TimeoutError, openai.APITimeoutError):
        raise Failure(f"no answer within {seconds:.3g} s", again=True, billed=True) from None
    except openai.APIConnectionError as error:
        if isinstance(error.__cause__, Refused):  # as older versions pass it on
            raise refusal(endpoint.key, error.__cause__) from None
        never_there = "connect" in type(error.__cause__).__name__.lower()
        what = "cannot connect" if never_there else "the connection broke"
        raise Failure(
            f"{what} ({said(endpoint.key, error)})", again=True, billed=not never_there
        ) from None
    except (openai.OpenAIError, OSError, ValueError) as error:
        raise Failure(
            f"the request failed ({said(endpoint.key, error)})", again=False, billed=True
        ) from None
    except Exception as error:
        # The body is read by the HTTP client itself, whose errors the package does not wrap.
        if not type(error).__module__.startswith(("httpx", "httpcore", "h11", "anyio")):
            raise
        raise Failure(
            f"the connection broke ({said(endpoint.key, error)})", again=True, billed=True
        ) from None
    return read_answer(endpoint.key, bytes(body))
