def allocate(game):
    """Give up the field that most opponents favour, for two more soldiers on each of the others."""
    return [0, 12, 12, 12, 12, 12]
