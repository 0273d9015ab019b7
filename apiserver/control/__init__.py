"""The control plane's routes: registration, access of pushers, seeds, retention, changefeeds, jobs and operators."""
