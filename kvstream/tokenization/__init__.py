"""Encode blocks of text as if all text were encoded at once; find the passages of tokens."""
