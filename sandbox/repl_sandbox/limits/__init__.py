"""Limits on what all processes of a session use together: control groups, and a watchdog."""
