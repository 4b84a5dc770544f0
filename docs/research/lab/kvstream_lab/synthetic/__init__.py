"""Made-up facts, and books and data sets, for training."""
