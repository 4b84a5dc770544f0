"""Blocks of text to tokens, as if all were encoded at once, and back: passages of tokens."""
