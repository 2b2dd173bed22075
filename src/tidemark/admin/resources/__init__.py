"""One module a kind of thing; each has `routes`."""
