"""Limits, in bytes and seconds, on connections and partly received requests."""
