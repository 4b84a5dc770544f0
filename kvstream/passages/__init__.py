"""Passages: the sentences of a text that memory keeps for the answering model."""
