"""`kvstream serve`: an OpenAI-compatible server of one model, whose memories are models, too."""
