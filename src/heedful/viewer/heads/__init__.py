"""A model's heads in a page: their maps, and the numbers that they are sorted by."""
