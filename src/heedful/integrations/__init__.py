"""Integrations of heedful into other libraries. Each module imports its library only when it is used."""
