"""Loaders: each file speaks to one framework."""
