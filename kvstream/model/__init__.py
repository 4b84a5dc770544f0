"""The model side: loading, probing, rotary positions, attention."""
