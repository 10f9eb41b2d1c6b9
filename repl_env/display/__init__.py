"""Pages about recorded runs, and the static files of pages."""
