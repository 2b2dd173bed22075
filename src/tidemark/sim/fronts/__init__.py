"""Fronts over several groups on virtual time: real routers, links and movers before real nodes."""
