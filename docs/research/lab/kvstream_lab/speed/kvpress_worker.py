"""Run kvpress's SnapKV in its own Python, controlled by lines of JSON; see `outside`.

This file does not import kvstream, which is not installed there. It answers every line of standard
input with one line on standard output: first ``{"model": ...}`` with information about the loaded
model, then ``{"read": ...}`` with the cost.
"""
# mypy: ignore-errors

import json
import os
import sys
import threading
import time

sys.path.pop(0)  # this folder, whose files this program must not import


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries must not mix with the answers
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "model" in asked:
                worker = Worker(**asked["model"])
                reply = worker.loaded
            else:
                reply = worker.read(**asked["read"])
        except Exception as error:  # sent to the caller
            memory = "OutOfMemory" in type(error).__name__ or "allocate memory" in str(error)
            reply = {"error": f"{type(error).__name__}: {error}"[:500], "memory": memory}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


class Worker:
    """A model of transformers with SnapKV's hooks."""

    def __init__(self, folder, random, dtype, device, threads, revision):
        started = time.perf_counter()
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(threads)
        self.torch, kind = torch, transformers.AutoModelForCausalLM
        if random:
            config = transformers.AutoConfig.from_pretrained(folder)
            with torch.device(device):
                model = kind.from_config(config, dtype=getattr(torch, dtype))
        else:
            model = kind.from_pretrained(
                folder, dtype=getattr(torch, dtype), revision=revision, use_safetensors=True
            ).to(device)
        self.model = model.eval().requires_grad_(False)
        from importlib.metadata import version

        self.loaded = {
            "load_s": time.perf_counter() - started,
            "versions": {name: version(name) for name in ("kvpress", "transformers", "torch")},
        }

    def read(self, ids, question, tokens, budget):
        """Read all ids, keep `budget` entries per head, write `tokens` tokens after a question."""
        import kvpress

        torch, model = self.torch, self.model
        cuda = model.device.type == "cuda"

        def wait():
            if cuda:
                torch.cuda.synchronize()

        spent = {"select": 0.0, "bytes": 0}

        class SnapKV(kvpress.SnapKVPress):
            def forward_hook(self, module, inputs, kwargs, output):
                # `cache` since transformers 5.24
                cache = kwargs["cache" if "cache" in kwargs else "past_key_values"]
                layers = cache.layers
                held = [
                    t
                    for layer in layers
                    if layer.is_initialized
                    for t in (layer.keys, layer.values)
                ]
                spent["bytes"] = max(spent["bytes"], sum(t.nbytes for t in held))
                wait()
                started = time.perf_counter()
                output = super().forward_hook(module, inputs, kwargs, output)
                wait()
                spent["select"] += time.perf_counter() - started
                return output

        from transformers import DynamicCache

        cache = DynamicCache()
        press = SnapKV(compression_ratio=max(0.0, 1 - budget / len(ids)))
        text = torch.tensor([ids], device=model.device)
        moments = []
        with torch.inference_mode(), Watch(torch, cuda) as peak:
            wait()
            started, cpu = time.perf_counter(), time.process_time()
            with press(model):
                model.model(input_ids=text, past_key_values=cache)
            wait()
            prefill, cpu = time.perf_counter() - started, time.process_time() - cpu
            more, place = torch.tensor([question], device=model.device), len(ids)
            for _ in range(tokens):
                positions = torch.arange(place, place + more.shape[1], device=model.device)[None]
                place += more.shape[1]
                out = model(
                    input_ids=more, past_key_values=cache, position_ids=positions, logits_to_keep=1
                )
                more = out.logits[:, -1:].argmax(-1)
                more.tolist()
                moments.append(time.perf_counter() - started)
        result = {
            "prefill_s": prefill,
            "cpu_s": cpu,
            "select_s": spent["select"],
            "peak_kv_tokens": len(ids),
            "peak_kv_bytes": spent["bytes"],
            "peak_rss_bytes": peak.rss,
            "peak_device_bytes": peak.device,
            "kept": cache.layers[0].keys.shape[2] - len(question) - tokens + 1,
        }
        if moments:
            result.update(first_token_s=moments[0], total_s=moments[-1])
            if len(moments) > 1:
                result["decode_tokens_per_s"] = (len(moments) - 1) / (moments[-1] - moments[0])
        return result


class Watch:
    """Peak memory of this process, sampled in a thread; on a GPU also the allocator's peak."""

    def __init__(self, torch, cuda):
        self.torch, self.cuda, self.rss, self.device = torch, cuda, 0, None

    def __enter__(self):
        import psutil

        process, self.stop = psutil.Process(), threading.Event()
        if self.cuda:
            self.torch.cuda.empty_cache()
            self.torch.cuda.reset_peak_memory_stats()

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
            self.device = self.torch.cuda.max_memory_allocated()


if __name__ == "__main__":
    main()
