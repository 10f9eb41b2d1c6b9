"""Contexts and files that clients upload over HTTP, and sessions that begin with them."""
