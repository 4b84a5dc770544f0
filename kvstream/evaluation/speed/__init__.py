"""What bounded reading costs in time and memory, beside what people use instead."""
