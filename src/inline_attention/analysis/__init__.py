"""What a model attends to: capture, one file per analysis, and their figures."""
