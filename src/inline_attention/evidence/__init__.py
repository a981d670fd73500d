"""The paper's claims, measured: claims as data, trials that are computed once, intervals over seeds, verdicts."""
