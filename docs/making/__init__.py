"""The pages that are made when the site is built, from what the package itself says."""
