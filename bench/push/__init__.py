"""A run on other machines: what is there, what is shipped, how it starts, how it is followed and fetched.

hosts      who is meant: arguments, an Ansible inventory
remote     one node, reached over SSH, its key in known_hosts; or this machine, without
survey     what a node says of itself, in one question; judge: what is wrong with that
depot      images here, as layers to send; ship: what a node lacks of them
launch     how a run starts and ends there: by itself, or as a job of Slurm's
record     what was begun where, on this machine's disk
follow     what happens there, mirrored here as it comes; the certificate on its way
journey    one node from its first answer to its bundle; campaign: many of them
company    those of them that train as one
"""
