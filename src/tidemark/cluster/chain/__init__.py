"""Chains: every member feeds the next one."""
