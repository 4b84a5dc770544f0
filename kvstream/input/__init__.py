"""Convert bytes of files and pipes to blocks of text with byte offsets."""
