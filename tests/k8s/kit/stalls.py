# SPDX-License-Identifier: Apache-2.0
"""How long the machine itself stood still: for promises in seconds, which hold of KTSN and not of a machine that somebody else uses.

In: nothing. Out: what each CPU's own thread, which would run every few milliseconds, could not run, added up. It is no measurement.
"""

import os
import threading
import time

TICK = 0.005


class Stalls:
    """Watches inside of a `with`; `lost` then says the seconds."""

    def __init__(self):
        self.lost, self._over, self._lock = 0.0, threading.Event(), threading.Lock()
        self._watches = [threading.Thread(target=self._watch, args=(cpu,)) for cpu in os.sched_getaffinity(0)]

    def __enter__(self):
        for watch in self._watches:
            watch.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for watch in self._watches:
            watch.join()

    def _watch(self, cpu):
        os.sched_setaffinity(0, {cpu})  # of this thread
        seen = time.monotonic()
        while not self._over.is_set():
            time.sleep(TICK)
            now = time.monotonic()
            # A tick, and what a wake-up and the other threads of this process take.
            with self._lock:
                self.lost += max(0.0, now - seen - 3 * TICK)
            seen = now
