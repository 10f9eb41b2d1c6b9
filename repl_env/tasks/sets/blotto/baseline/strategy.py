def allocate(game):
    """The soldiers on each of the 6 fields."""
    return [10, 10, 10, 10, 10, 10]
