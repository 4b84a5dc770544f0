"""What remains of a reading: asked, saved, cited."""
