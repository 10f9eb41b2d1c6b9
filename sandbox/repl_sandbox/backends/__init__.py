"""Ways to start a template elsewhere than as a child of this process. Nothing is loaded by name."""
