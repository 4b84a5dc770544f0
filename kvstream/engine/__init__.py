"""Chunk -> model -> evidence -> method -> memory: the loop of the program."""
