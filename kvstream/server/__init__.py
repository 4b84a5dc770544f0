"""`kvstream serve`: an OpenAI-compatible server of one model and of memories as models."""
