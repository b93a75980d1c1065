"""A worker's end of the conversation with its driver: one JSON object a line, requests on stdin, answers on stdout.

Standard library alone, as every worker runs in its contender's own environment.
"""

import json
import os
import sys
import time
from pathlib import Path


class Pipe:
    def __init__(self):
        # Libraries print to stdout as they like: the answers keep the real one, and everything else goes to stderr.
        self.answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self.cpu_at_request = self.cpu_at_answer = time.process_time()

    def receive(self) -> dict | None:
        """Wait for the next request; None when the driver has closed the conversation."""
        line = sys.stdin.readline()
        self.cpu_at_request = time.process_time()
        return json.loads(line) if line else None

    def answer(self, **fields) -> None:
        """Send ``fields`` with the peak resident bytes so far and the CPU seconds of this request and of the wait for it."""
        answer = fields | {
            "peak_bytes": peak_bytes(),
            "cpu_seconds": time.process_time() - self.cpu_at_request,
            "idle_cpu_seconds": self.cpu_at_request - self.cpu_at_answer,
        }
        print(json.dumps(answer), file=self.answers, flush=True)
        self.cpu_at_answer = time.process_time()


def peak_bytes() -> int:
    """The highest resident set of this process, in bytes (getrusage would include the parent's before exec)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
