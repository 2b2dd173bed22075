"""Metrics for Prometheus: what there is (`names`), where the numbers come from (`families`), how they are told (`text`)."""
