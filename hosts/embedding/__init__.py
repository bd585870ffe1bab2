"""The choice of a ring for given costs of its edges."""
