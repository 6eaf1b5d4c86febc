"""Leases, generations, the gate, roles and their transport."""
