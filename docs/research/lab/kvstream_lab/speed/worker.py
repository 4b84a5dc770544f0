"""What programs in a Python of their own share: lines of JSON, and the peak of memory.

kvstream is not installed there, so neither this file nor the programs import it.
"""
# mypy: ignore-errors

import json
import os
import sys
import threading


def serve(requests):
    """Answer each line ``{NAME: arguments}`` of standard input with a line on standard output.

    `requests` are functions by name. They return what is sent back, or None.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    for line in sys.stdin:
        ((name, arguments),) = json.loads(line).items()
        try:
            reply = requests[name](**arguments) or {}
        except Exception as error:  # sent to the caller
            memory = "OutOfMemory" in type(error).__name__ or "allocate memory" in str(error)
            reply = {"error": f"{type(error).__name__}: {error}"[:500], "memory": memory}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


class Watch:
    """Peak memory of this process, sampled in a thread; with `cuda` also the allocator's peak."""

    def __init__(self, cuda=None):
        self.cuda, self.rss, self.device = cuda, 0, None

    def __enter__(self):
        import psutil

        process, self.stop = psutil.Process(), threading.Event()
        if self.cuda:
            self.cuda.empty_cache()
            self.cuda.reset_peak_memory_stats()

        def look():
            while True:
                self.rss = max(self.rss, process.memory_info().rss)
                if self.stop.wait(0.02):
                    return

        self.thread = threading.Thread(target=look, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        if self.cuda:
            self.device = self.cuda.max_memory_allocated()
