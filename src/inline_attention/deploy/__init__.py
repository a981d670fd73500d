"""L3: exported files, hub folders with model cards, and linear copies of softmax models."""
