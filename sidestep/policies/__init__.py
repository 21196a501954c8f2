"""Policies: networks and tables, and what a policy may observe."""
