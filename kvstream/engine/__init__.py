"""The main loop of the program: chunk -> model -> evidence -> method -> memory."""
