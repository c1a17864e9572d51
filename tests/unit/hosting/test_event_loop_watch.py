"""The lateness of a process is measured, and forgotten again."""

import asyncio
import time

from chelonia.hosting.event_loop_watch import LoopLag
from tests.support.polling import poll_async


async def test_a_blocked_event_loop_is_strain_and_an_idle_one_is_not() -> None:
    loop_lag = LoopLag()
    measuring = asyncio.create_task(loop_lag.run())

    async def late() -> bool:
        time.sleep(0.2)
        return loop_lag() > 100

    async def prompt() -> bool:
        return loop_lag() < 50  # a busy machine gives it its turns late

    try:
        await poll_async(late, 10.0, interval=0.01, what="the loop is seen to be late")
        await poll_async(prompt, 30.0, what="it is prompt again")
    finally:
        measuring.cancel()
