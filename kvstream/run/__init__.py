"""What is asked, what is fixed before the first token, and the feed of tokens to the engine."""
