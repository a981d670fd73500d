"""Benches: how fast the layer and the models are, and how much memory they need, compared with the alternatives."""
