"""L4: a page in the browser to see what models look at."""
