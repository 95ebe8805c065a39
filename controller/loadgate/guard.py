"""How does a permit go around every call of a function?"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from loadgate.permit import Permit


def guarded(function: Any, permit_for: Callable[[tuple[Any, ...], dict[str, Any]], Permit]) -> Any:
    """Wrap `function` so that each call holds a permit from its start to its end.

    Args:
        function: A coroutine function or async generator function. What is sent into or
            thrown into its generators arrives there.
        permit_for: Makes the permit from the positional and keyword arguments of a call.

    Raises:
        TypeError: The function is neither.
    """
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def stream(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            async with (
                permit_for(args, kwargs) as permit,
                aclosing(function(*args, **kwargs)) as it,
            ):
                step = it.asend(None)
                while True:
                    try:
                        item = await step
                    except StopAsyncIteration:
                        return
                    permit.answered()
                    # What the consumer sends or throws in is for the function. (`aclose` needs
                    # nothing: leaving the block closes it.)
                    try:
                        sent = yield item
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # whatever it is, it is passed on
                        step = it.athrow(error)
                    else:
                        step = it.asend(sent)

        return stream

    if not inspect.iscoroutinefunction(function):
        raise TypeError(
            "guard() needs a coroutine function or an async generator function, not "
            f"{function!r}; a plain function cannot wait: use try_admit() inside it"
        )

    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        async with permit_for(args, kwargs):
            return await function(*args, **kwargs)

    return call
