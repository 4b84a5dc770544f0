"""Run llama.cpp in its own Python (package xllamacpp), controlled by lines of JSON.

``{"copy": ...}`` copies a GGUF file, ``{"write": ...}`` makes one of another type, ``{"model":
...}`` loads one, and ``{"read": ...}`` reads ids and reports the cost.
"""
# mypy: ignore-errors

import json
import shutil
import sys
import time

ALL = "full"


def copy(source, target, trained):
    """Copy the GGUF file `source` and set its trained length to `trained` positions.

    The server refuses prompts that are longer than the file's trained length.
    """
    import gguf

    shutil.copyfile(source, target)
    reader = gguf.GGUFReader(target, "r+")
    architecture = reader.fields["general.architecture"].contents()
    field = reader.fields[f"{architecture}.context_length"]
    field.parts[field.data[0]][0] = trained
    reader.data.flush()


def write(source, target, kind):
    """Write the GGUF file `source` with its matrices as `kind` (``Q8_0`` or ``F16``)."""
    import gguf

    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
    to = gguf.GGMLQuantizationType[kind]
    block = gguf.GGML_QUANT_SIZES[to][0]
    for tensor in reader.tensors:
        numbers = gguf.dequantize(tensor.data, tensor.tensor_type)
        if len(tensor.shape) < 2 or numbers.shape[-1] % block:
            writer.add_tensor(tensor.name, numbers.astype("float32"))
        else:
            writer.add_tensor(tensor.name, gguf.quantize(numbers, to), raw_dtype=to)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Worker:
    """A GGUF file in llama.cpp, on the CPU."""

    def load(self, path, threads, context, ubatch, flash):
        started, self.server = time.perf_counter(), None  # free its memory before the next one
        import xllamacpp as llama

        types = llama.llama_flash_attn_type
        params = llama.CommonParams()
        params.model.path = path
        params.n_ctx, params.n_batch, params.n_ubatch = context, max(2048, ubatch), ubatch
        params.n_parallel, params.n_gpu_layers, params.warmup = 1, 0, False
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        # Move the entries of a part that the next prompt repeats, instead of reading it again.
        params.n_cache_reuse, params.cache_ram_mib, params.n_ctx_checkpoints = 32, 0, 0
        params.flash_attn_type = (
            types.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else types.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        self.server = llama.Server(params)
        from importlib.metadata import version

        return {
            "load_s": time.perf_counter() - started,
            "versions": {"xllamacpp": version("xllamacpp")},
            "system_info": llama.get_system_info(),
        }

    def read(self, ids, question, tokens, mode, budget):
        """Read all ids, or slide a window of `budget` over them, then write `tokens` tokens."""
        with Watch() as peak:
            started, cpu = time.perf_counter(), time.process_time()
            if mode == ALL:
                shown = list(ids)
                self.complete(shown, 1)
            else:
                shown = self.slide(list(ids), budget, len(question) + tokens)
            prefill, cpu = time.perf_counter() - started, time.process_time() - cpu
            result = {"prefill_s": prefill, "cpu_s": cpu}
            if tokens:
                first = self.complete(shown + list(question), 1)
                shown += [*question, first]
                result["first_token_s"] = time.perf_counter() - started
            if tokens > 1:
                began, spent = time.perf_counter(), time.process_time()
                self.complete(shown, tokens - 1)
                wall, spent = time.perf_counter() - began, time.process_time() - spent
                result["total_s"] = time.perf_counter() - started
                result["decode_tokens_per_s"] = (tokens - 1) / wall
                result["decode_cpu_tokens_per_s"] = (tokens - 1) / spent
        held = len(ids) if mode == ALL else min(budget, len(ids))
        return {
            **result, "select_s": None, "peak_kv_tokens": held, "peak_kv_bytes": None,
            "peak_rss_bytes": peak.rss, "peak_device_bytes": None,
        }  # fmt: skip

    def slide(self, ids, budget, beside):
        """Drop the oldest half of the window whenever it is full. The rest is moved, not reread."""
        window, room = [], budget - beside
        step = room // 2
        for at in range(0, len(ids), step):
            window = [*window[-(room - step) :], *ids[at : at + step]]
            self.complete(window, 1)
        return window

    def complete(self, ids, count):
        """Complete the prompt `ids`, partly cached, with `count` tokens. Return the first one."""
        reply = self.server.handle_completions(
            {
                "prompt": ids, "n_predict": count, "temperature": 0, "cache_prompt": True,
                "ignore_eos": True, "return_tokens": True, "stream": False,
            }
        )  # fmt: skip
        reply = json.loads(reply) if isinstance(reply, str) else reply
        if "error" in reply or "choices" not in reply:
            raise RuntimeError(str(reply.get("error", reply))[:300])
        found = reply["choices"][0].get("tokens") or reply.get("tokens") or ids[-1:]
        return found[0]


if __name__ == "__main__":
    from worker import Watch, serve

    sys.path.pop(0)  # this folder: its files are not modules of this program
    worker = Worker()
    serve({"copy": copy, "write": write, "model": worker.load, "read": worker.read})
