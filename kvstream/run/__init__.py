"""The request, the plan that is fixed before the first token, and the token feed of the engine."""
