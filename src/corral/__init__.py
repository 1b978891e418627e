"""Corral: coding agents in isolated sandboxes on hardware you own."""

__version__ = "0.1.0"
