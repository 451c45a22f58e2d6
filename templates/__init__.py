"""The batch script's template and example settings."""
