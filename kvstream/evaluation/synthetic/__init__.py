"""Questions that rules make of sentences, and which texts training holds out."""
