"""One session seen from the host: the logic once (`core`), and two thin drivers."""
