"""Methods: each is a small class that decides which entries of the KV cache stay."""
