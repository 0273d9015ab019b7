"""What the service may open for a caller: one rule for every address, bucket and folder that a caller names.

    rules       what operators allow, and what a target is
    policy      the decision: scheme, host, whose credentials, files of the machine, and what belongs to the service
    addresses   names are resolved, checked and used as one step, so that no second answer of DNS is ever used
    gate        the same for clients that resolve names themselves: a proxy inside the process

A target is refused with the same answer whatever is behind it, before a name is resolved or a connection is made.
"""
