"""What is worth reading whole: passages that are kept beside a small model's memory."""
