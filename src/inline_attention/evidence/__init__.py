"""L5: the paper's claims, measured: a table of claims, cells that are trained once, intervals over seeds, verdicts."""
