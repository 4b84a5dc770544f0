"""What `import kvstream` offers: a model, memories, answers; the command line stands on it."""
