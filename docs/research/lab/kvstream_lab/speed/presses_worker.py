"""Answer with kvpress's presses, in a Python of their own; see `presses.py`.

``{"model": ...}`` loads a model, and ``{"ask": ...}`` asks a question about a text.

A press only chooses entries: what a layer computes in the prefill does not depend on it. So one
prefill serves all presses. Each of them gets what its own hook would get.
"""
# mypy: ignore-errors

import sys
import time


class Worker:
    """A model of transformers."""

    def load(self, folder):
        import kvpress  # noqa: F401  kvpress must change attention before the model is made
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        torch.set_num_threads(1)
        self.torch = torch
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True
        )
        if loading["missing_keys"]:  # they would be random
            raise ValueError(f"{folder} lacks {sorted(loading['missing_keys'])[:3]}")
        self.model = model.eval().requires_grad_(False)

    def ask(self, ids, question, tokens, stop, kept, presses, head):
        """Return each press's answer, and the entries that it holds in a head (mean over heads).

        `seconds` of processor time are for prefill and scores of all presses together.
        """
        answers, held, start = {}, {}, time.process_time()
        with self.torch.inference_mode():
            choices = self.chosen(ids, kept, presses, head)
            seconds = round(time.process_time() - start, 1)
            for name, choice in choices.items():
                held[name] = choice.held(len(ids))
                answers[name] = self.answer(choice, len(ids), question, tokens, stop)
        return {"answers": answers, "held": held, "seconds": seconds}

    def chosen(self, ids, kept, presses, head):
        """Return the choice of each press after one prefill of all ids."""
        import kvpress as kv
        from transformers import DynamicCache

        ratio = 1 - kept / len(ids)

        def expected():
            return kv.ExpectedAttentionPress(ratio, epsilon=1e-2)

        made = {
            "keydiff": lambda: kv.KeyDiffPress(ratio),
            "snapkv": lambda: kv.SnapKVPress(ratio),
            "expected": expected,
            "adakv": lambda: kv.AdaKVPress(expected()),
            "compactor": lambda: kv.CompactorPress(ratio),
        }
        by_layer = {name: made[name]() for name in presses if name in made}
        found = {name: Choice() for name in presses}
        model, cache, text = self.model, DynamicCache(), self.torch.tensor([ids])
        for press in by_layer.values():
            press.post_init_from_model(model)

        def hook(module, inputs, kwargs, output):
            cache = kwargs["cache" if "cache" in kwargs else "past_key_values"]
            layer = cache.layers[module.layer_idx]
            for name, press in by_layer.items():
                module.masked_key_indices = None
                pair = press.compress(
                    module, kwargs["hidden_states"], layer.keys, layer.values, output[1], kwargs
                )
                found[name].add(*pair, module.masked_key_indices)
                module.masked_key_indices = None

        def prefill():
            hooks = []
            for layer in model.model.layers:
                layer.self_attn.rotary_emb = model.model.rotary_emb
                hooks.append(layer.self_attn.register_forward_hook(hook, with_kwargs=True))
            model.model(input_ids=text, past_key_values=cache)
            for each in hooks:
                each.remove()

        if "kvzip" in found:
            press = kv.KVzipPress(ratio)
            with press(model):  # KVzip scores when the context ends
                prefill()
                press.prefix_length = 0  # otherwise the prompt gets no scores and is evicted
        else:
            prefill()
        for name in ("none", "kvzip"):
            for number, layer in enumerate(cache.layers if name in found else ()):
                module = model.model.layers[number].self_attn
                masked = module.masked_key_indices if name == "kvzip" else None
                found[name].add(
                    layer.keys[:, :, : len(ids)], layer.values[:, :, : len(ids)], masked
                )
        return found

    def answer(self, choice, place, question, tokens, stop):
        """Write ids greedily; positions continue after the text, as in kvpress."""
        torch, model, said = self.torch, self.model, []
        cache, more = choice.cache(model), torch.tensor([question])
        for _ in range(tokens):
            positions = torch.arange(place, place + more.shape[1])[None]
            place += more.shape[1]
            out = model(
                input_ids=more, past_key_values=cache, position_ids=positions, logits_to_keep=1
            )
            more = out.logits[:, -1:].argmax(-1)
            if int(more) in stop:
                break
            said.append(int(more))
        for layer in model.model.layers:
            layer.self_attn.masked_key_indices = None
        return said


class Choice:
    """What a press keeps: the entries of each layer, and those that are masked instead."""

    def __init__(self):
        self.layers = []

    def add(self, keys, values, masked):
        self.layers.append((keys, values, masked))

    def held(self, read):
        """Return the number of entries in a head, as the mean over all heads and layers."""
        total = sum(k.shape[1] * k.shape[2] - (len(m[0]) if m else 0) for k, _, m in self.layers)
        return round(total / sum(k.shape[1] for k, _, _ in self.layers), 1)

    def cache(self, model):
        """Return a new cache, since masking writes into keys."""
        from transformers import DynamicCache

        cache = DynamicCache()
        for number, (keys, values, masked) in enumerate(self.layers):
            cache.update(keys.clone(), values.clone(), number)
            model.model.layers[number].self_attn.masked_key_indices = masked
        return cache


if __name__ == "__main__":
    from worker import serve

    sys.path.pop(0)  # this folder: its files are not modules of this program
    worker = Worker()
    serve({"model": worker.load, "ask": worker.ask})
