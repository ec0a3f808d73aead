"""Checks of published instructions: a file for each family of ids."""
