"""L3: what leaves the house: exported files, hub folders, linear copies of softmax models."""
