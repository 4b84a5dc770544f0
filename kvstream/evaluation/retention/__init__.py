"""What memory holds at every step of a reading, and what a cache that holds the text looks at."""
