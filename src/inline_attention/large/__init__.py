"""Images larger than memory: by bands of rows, from files, over processes."""
