"""Distributed PPO under faults."""
