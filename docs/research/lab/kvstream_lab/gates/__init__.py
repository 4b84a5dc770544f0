"""Training and evaluation of the gates of `edgeinfinite`."""
