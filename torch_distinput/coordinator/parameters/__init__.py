"""Parameters of a module that live on servers: placed, pulled, pushed, saved whole.

parameters, create    what a user holds; how it is made
client, local_module  one process's copy of the module: pulls and pushes
server, gate          the object in a server's process; whose push comes next
held, optimizers      the shards of one server, and its optimizer
optimizer_state       the optimizer's state, joined and cut
placement, staleness  which rows lie where, how stale a gradient may be: integers alone
payload, fan_out      what travels; calls of several servers at a time
description           what a module consists of, and how another process makes it
identity              whose process this is
"""
