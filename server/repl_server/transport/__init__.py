"""How requests come in and replies go out."""
