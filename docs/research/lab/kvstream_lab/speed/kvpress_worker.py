"""Run kvpress's SnapKV in its own Python, controlled by lines of JSON; see `outside`.

``{"model": ...}`` loads a model, and ``{"read": ...}`` reads ids and reports the cost.
"""
# mypy: ignore-errors

import sys
import time


class Worker:
    """A model of transformers with SnapKV's hooks."""

    def load(self, folder, random, dtype, device, threads, revision):
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

        return {
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
        with torch.inference_mode(), Watch(torch.cuda if cuda else None) as peak:
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


if __name__ == "__main__":
    from worker import Watch, serve

    sys.path.pop(0)  # this folder: its files are not modules of this program
    worker = Worker()
    serve({"model": worker.load, "read": worker.read})
