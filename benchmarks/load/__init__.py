"""Whole deployments of real processes under a load whose commits carry the timestamps of now.

feed        what one modelled store sends: columns, no object for each row
push        a process of pushers, of one tenant or of very many
deployment  MariaDB, an S3 server or a folder, and the services; what each of them uses
reader      follows a tenant and says how old everything is that comes
"""
