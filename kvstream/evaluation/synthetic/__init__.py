"""Made-up documents with known facts, and made-up facts for training.

`document` is the entry point: a document of any length, its facts and their questions. It uses
`novel` (prose), `document_facts` (facts) and `planting` (planting facts in any text).

For training: `training_facts` and `keys` (planted facts), `questions` (rule-based questions about
sentences of a text) and `corpus` (books and data sets). `splits` decides which texts are held out.
"""
