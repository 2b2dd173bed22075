"""One member of a cluster, without a socket or a clock."""
