"""L0: what needs neither torch nor timm: pictures from files, the view that a model is shown, exported classifiers."""
