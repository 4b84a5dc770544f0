"""What memory kept of the text: which head holds which token, and the text around these tokens."""
