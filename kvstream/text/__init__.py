"""Small parts of reading: blocks of text with byte offsets, formats, folders, sentences.

``kvstream.sources``, ``kvstream.tokens`` and ``kvstream.passages`` are the doors to them.
"""
