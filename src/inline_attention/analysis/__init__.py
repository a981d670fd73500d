"""L3: what a model looks at. Functions give numbers; `plots` draws them."""
