"""Kept tokens: which head holds which token, and the text around these tokens."""
