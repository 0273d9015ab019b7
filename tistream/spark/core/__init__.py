"""Options and filters of the Spark data source. Pure."""
