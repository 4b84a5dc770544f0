"""Models on disk, models that can be fetched, and the paths of files that a user names."""
