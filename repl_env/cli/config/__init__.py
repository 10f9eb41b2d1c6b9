"""Options of all commands from a configuration file."""
