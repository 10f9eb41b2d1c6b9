"""Language policies: rules for the code of cells, enforced before or while they run."""
