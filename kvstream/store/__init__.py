"""Where files lie: models on disk and what can be fetched, and how what users name is written."""
