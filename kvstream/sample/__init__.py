"""Made-up documents with known facts.

`document` is the entry point: a document of any length, its facts and their questions. It uses
`novel` (prose) and `document` (facts, and planting them in any text).
"""
