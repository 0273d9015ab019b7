"""Bodies of answers: changes and snapshots, of tables and of keys and values.

request      what is asked for, and what is answered
pull         one page of changes, or of a snapshot
changes      rows of the log that pass, as many as fit a body
tables       changes of tables          entries        of keys and values
snapshot     rows of tables             key_snapshot   keys and values as of a timestamp
"""
