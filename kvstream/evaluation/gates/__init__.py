"""Training and measuring the gates of `edgeinfinite`."""
