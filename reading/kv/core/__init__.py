"""Pure parts of reads of raw and txn tenants."""
