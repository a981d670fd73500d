"""L0: pure functions on tensors. They own no parameters and need torch alone."""
