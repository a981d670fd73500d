"""L4: the command `inline`. The only place that parses arguments and prints; each sub-command imports what it needs."""
