"""What the scripts of the lab share: training, gates, suites and measures of memory."""
