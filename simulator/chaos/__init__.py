"""Chaos on real processes: faults hit a whole deployment at random, while readers compare what they get with the truth.

plan      which faults hit which target, and for how long (pure, seeded)
rig       the deployment: MariaDB, an S3 server, two of each service and more, proxies between them, a modelled cluster
takeover  how long the items of a dead worker were without an owner
judge     compares what readers got with the promises and with what was committed upstream
run       one run, and its report
"""
