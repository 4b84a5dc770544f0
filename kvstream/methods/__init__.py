"""What decides which entries of the KV cache stay: one small file a method."""
