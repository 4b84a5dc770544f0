"""What is fixed before the first token: prompt, budget, method."""
