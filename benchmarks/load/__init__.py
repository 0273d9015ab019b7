"""Whole deployments of real processes under a load with current commit timestamps.

measure     one run, and its report
soak        the same with kills, and what grows
capacity    several, and their differences
feed        the events of one modelled store: columns, no object for each row
push        a process of pushers, of one tenant or of very many; `process` starts it
deployment  MariaDB, an S3 server or a folder, and the services; the resources that each uses
recovery    the cluster that a changefeed writes to, in a process
reader      follows a tenant and records the age of everything it gets
"""
