"""Delivery pipelines: streams through Spark into warehouses, databases, caches and indexes, exactly once."""
