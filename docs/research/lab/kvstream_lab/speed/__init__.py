"""What `bench speed` is compared with by the lab alone: other programs, StreamingLLM, shapes."""
