"""Contexts that clients upload over HTTP, and the sessions that begin with them."""
