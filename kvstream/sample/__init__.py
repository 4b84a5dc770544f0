"""Made-up documents with known facts.

`document` is the entry point: a document of any length, its facts and their questions. It uses
`novel` (prose), `document_facts` (facts) and `document` (planting facts in any text).
"""
