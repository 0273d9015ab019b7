"""Plans compactions and checks their results. Pure."""
