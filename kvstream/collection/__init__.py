"""Many documents: one reading and one result for each, in this process or on Ray workers."""
