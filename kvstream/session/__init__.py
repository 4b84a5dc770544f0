"""Sessions, which connect all parts of a run: sources in, events out."""
