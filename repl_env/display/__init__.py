"""What people look at: pages about recorded runs, and the files that pages are made of."""
