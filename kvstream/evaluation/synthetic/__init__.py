"""Made-up documents with known facts in them, and the made-up facts that training reads.

`document` is the door: a document of any length, its facts and their questions. Behind it are
`novel` (prose), `document_facts` (facts) and `planting` (facts into any text).

For training: `training_facts` and `keys` (what is planted), `questions` (asked by rule of sentences
that stand in a text) and `corpus` (books and data sets). `splits` says which texts are held out.
"""
