"""Language policies: what cells may say, decided in the session before or while they run."""
