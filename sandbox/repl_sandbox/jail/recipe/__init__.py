"""Recipes of the tiers: ordered steps that build the jail of a session, and how they are taken."""
