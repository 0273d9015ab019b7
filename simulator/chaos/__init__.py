"""Chaos on real processes: a whole deployment is hurt at random, while readers compare what they get with the truth.

plan      what is done to whom, and for how long (pure, seeded)
rig       the deployment: MariaDB, an S3 server, two of each service and more, proxies between them, a modelled cluster
takeover  how long what a dead worker had was without an owner
judge     what the readers got, against what they were promised and what was committed upstream
run       one run, and its report
"""
