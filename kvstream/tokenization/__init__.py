"""Blocks of text to tokens, the same tokens as if the whole text were encoded at once."""
