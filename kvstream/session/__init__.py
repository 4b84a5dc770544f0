"""All of it together: sources in, events out."""
