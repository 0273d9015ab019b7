"""The pure core of the sorter: matches prewrites with commits and decides what is final."""
