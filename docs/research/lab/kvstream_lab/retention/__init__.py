"""The tokens in memory at every step of a reading, compared with attention to a full KV cache."""
