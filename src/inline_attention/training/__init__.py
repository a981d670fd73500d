"""L3: classification. From a recipe and pictures to weights and an accuracy; models are known by name only."""
