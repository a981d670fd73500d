"""L3: measuring. Cases are data, contenders run interleaved in one process, results are a table, JSON and a picture."""
