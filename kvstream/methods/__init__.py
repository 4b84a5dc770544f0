"""What decides which entries of the KV cache stay: one small class a method."""
