"""A Flower app whose clients are selected by cvrcore."""
