"""Tools of this repository; see each one's first lines."""
