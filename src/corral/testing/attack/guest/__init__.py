"""Hostile programs, to be run inside a sandbox."""
