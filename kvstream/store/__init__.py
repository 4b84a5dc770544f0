"""Where models lie: files, stores of other programs, what can be fetched."""
