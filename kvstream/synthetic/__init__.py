"""Made-up facts, keys, questions and documents, for benchmarks, samples and training."""
