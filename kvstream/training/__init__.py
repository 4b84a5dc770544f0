"""How the embedded model is made: tokenizer, documents with questions, training, scores.

Nothing here is imported by the engine. Start with ``python -m kvstream.training pocket --help``.
"""
