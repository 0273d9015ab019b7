"""PD and key-value answers of the model cluster. Pure."""
