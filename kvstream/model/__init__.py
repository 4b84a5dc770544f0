"""The model: loading, probe, rotary positions, attention and KV cache."""
