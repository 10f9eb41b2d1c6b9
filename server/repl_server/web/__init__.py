"""Pages for browsers: the playground at `/`, and the documentation of the routes at `/docs`."""
