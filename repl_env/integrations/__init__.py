"""Classes of trainers and their libraries over our episodes, a package for each library."""
